"""What was asked for, as the words after ``workbench`` that ask for the same again.

What a command line cannot say raises ``Untold`` with the reason, a clause.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from sessions import sweep
from sessions.model import Configuration, Scalar

_DEFAULT_DATA = "synthetic"
_EXACT = ".12g"  # more digits than a person writes, and none that only the binary fraction has


class Untold(Exception):  # noqa: N818 - carries its reason
    """No command asks for this: a clause that says why."""


def of_configuration(
    configuration: Configuration,
    toggles: Mapping[str, str],
    asked: Sequence[str],
    output: str | os.PathLike[str] | None,
) -> list[str]:
    """What names a configuration with these toggles; ``asked`` comes before its seed."""
    found = [configuration.family]
    found += option("--preset", configuration.preset)
    found += option("--workload", configuration.workload)
    for group in (configuration.model, configuration.settings):
        for name, value in sorted(group.items()):
            found += option("--set", f"{name}={_written(value)}")
    for name, chosen in sorted(toggles.items()):
        found += option("--toggle", f"{name}={chosen}")
    if configuration.data != _DEFAULT_DATA:
        found += option("--data", configuration.data)
    found += asked
    found += option("--seed", str(configuration.seed))
    return found + saved_to(output)


def of_order(command: Mapping[str, Any], output: str) -> list[str]:
    """The words that ask for a run, a comparison, a study or a benchmark again.

    ``command`` as an ``Order`` keeps it. What depends on the machine is not told: its noise floor.
    """
    try:
        return _KINDS[command["type"]](command, output)
    except (KeyError, TypeError, ValueError, msgspec.ValidationError):
        raise Untold("another version of the workbench wrote down what was asked for") from None


def of_start(command: Mapping[str, Any], first: bool, last: bool, output: str) -> list[str]:
    """What a run was asked for beside its configuration: its check, and decode states.

    ``first`` and ``last``: whether it is the part of the run that went on from one and left one.
    """
    found = ["--check"] if command.get("check") == "last" else []
    if first and (state := command.get("load_state")):
        found += option("--load-state", str(state))
    if last and command.get("save_state"):
        found += option("--save-state", os.fspath(PurePath(output).with_suffix(".state")))
    return found


def of_claims(asked: Mapping[str, Any], output: str) -> list[str]:
    """The words that measure the claims of a study of claims again."""
    try:
        documents, experiments = asked["documents"], asked["experiments"]
        found = ["reproduce", *documents]
        for name in dict.fromkeys(experiments):
            found += option("--only", str(name))
        found += ["--budget", exactly(asked["budget_s"])]
        if limit_s := asked.get("limit_s"):
            found += ["--limit", exactly(limit_s)]
    except (KeyError, TypeError, ValueError):
        raise Untold("another version of the workbench wrote down what was asked for") from None
    return found + saved_to(output)


def is_calibration(command: Mapping[str, Any]) -> bool:
    """Whether a comparison was made to learn the machine's own noise."""
    return (
        command.get("type") == "compare"
        and command.get("base") == command.get("other")
        and not any(command.get(name) for name in ("predict", "floor", "before_s"))
    )


def option(name: str, value: str) -> list[str]:
    """Two words, or one where the value would be taken for an option itself."""
    if value.startswith("-"):
        return [f"{name}={value}"] if name.startswith("--") else [f"{name}{value}"]
    return [name, value]


def saved_to(output: str | os.PathLike[str] | None) -> list[str]:
    """Where the session goes, if anywhere."""
    return [] if output is None else option("-o", os.fspath(output))


def exactly(number: float) -> str:
    """A number as a person writes it."""
    return format(number, _EXACT)


def chosen(toggles: Mapping[str, str]) -> str:
    """Toggles as one word."""
    return ",".join(f"{name}={option}" for name, option in toggles.items())


def of_comparison(
    base: Configuration, other: Configuration, facts: Mapping[str, Any], output: str | None
) -> list[str]:
    """The words that compare two configurations, which differ in toggles alone, as ``facts`` say.

    ``facts``: the seconds ``budget_s``, the share ``region``, and the ``order`` of the pairs.
    """
    asked: list[str] = []
    shared, sides = _divided(base.toggles, other.toggles)
    for side, own in zip(("--a", "--b"), sides, strict=True):
        asked += option(side, chosen(own)) if own else []
    asked += ["--budget", exactly(facts["budget_s"])]
    asked += ["--region", exactly(100 * facts["region"])]
    if order := facts.get("order"):
        asked += option("--order", str(order))
    return ["ab", *of_configuration(base, shared, asked, output)]


def _start(command: Mapping[str, Any], output: str) -> list[str]:
    configuration, asked = _read(command["configuration"]), []
    for name in ("steps", "seconds"):
        if command[name] is not None:
            asked += [f"--{name}", exactly(command[name])]
    asked += of_start(command, True, True, output)
    return ["run", *of_configuration(configuration, configuration.toggles, asked, output)]


def _compare(command: Mapping[str, Any], output: str) -> list[str]:
    base, other = _read(command["base"]), _read(command["other"])
    if is_calibration(command):
        asked = ["--budget", exactly(command["budget_s"])]
        return ["calibrate", *of_configuration(base, base.toggles, asked, None)]
    require_alike(base, other)
    return of_comparison(base, other, command, output)


def _attribute(command: Mapping[str, Any], output: str) -> list[str]:
    base = _read(command["base"])
    asked = option("--toggles", chosen(command["toggles"]))
    asked += ["--mode", command["mode"], "--budget", exactly(command["budget_s"])]
    asked += ["--region", exactly(100 * command["region"])]
    if command["mode"] == "shapley":
        asked += ["--orders", str(command["orders"])]
    return ["attribute", *of_configuration(base, base.toggles, asked, output)]


def _sweep(command: Mapping[str, Any], output: str) -> list[str]:
    base, asked = _read(command["base"]), []
    for name, values in command["axes"].items():
        text = ",".join(map(_written, values))
        if sweep.read_values(text, name) != values:
            raise Untold(f"the values of {name} cannot be written as words")
        asked += option("--over", f"{name}={text}")
    for arm in command["arms"]:
        asked += option("--arm", chosen(arm))
    asked += ["--seconds-per-point", exactly(command["seconds"])]
    return ["sweep", *of_configuration(base, base.toggles, asked, output)]


def _profile(command: Mapping[str, Any], output: str) -> list[str]:
    configurations = list(map(_read, command["configurations"]))
    first, last = configurations[0], configurations[-1]
    if len(configurations) > 2:
        raise Untold("more than two configurations were profiled")
    require_alike(first, last)
    asked = ["--steps", str(command["steps"])]
    toggles = first.toggles
    if len(configurations) == 2:
        toggles, sides = _divided(first.toggles, last.toggles)
        for side, own in zip(("--a", "--b"), sides, strict=True):
            asked += option(side, chosen(own))
    if command["traces"]:
        asked += option("--trace", os.fspath(PurePath(output).with_suffix(".json.gz")))
    return ["profile", *of_configuration(first, toggles, asked, output)]


def _validate(command: Mapping[str, Any], output: str) -> list[str]:
    configuration = _read(command["configuration"])
    asked = ["--steps", str(command["steps"])]
    for batch in command["batches"]:
        asked += ["--batch", str(batch)]
    if command["expect_speedup"] is not None:
        asked += ["--expect-speedup", exactly(command["expect_speedup"])]
    asked += ["--budget", exactly(command["budget_s"])]
    return ["validate", *of_configuration(configuration, configuration.toggles, asked, output)]


def _bench(command: Mapping[str, Any], output: str) -> list[str]:
    if any(command[name] for name in ("cases", "implementations", "forward_only")):
        raise Untold("only some cases or implementations were timed")
    found = ["bench", *command["operators"]]
    if command["dtype"]:
        found += option("--dtype", command["dtype"])
    found += ["--every-case"] * command["every_case"] + ["--tune"] * command["tune"]
    if command["budget_s"] is not None:
        found += ["--budget", exactly(command["budget_s"])]
    return found + saved_to(output)


_KINDS = {
    "start": _start,
    "compare": _compare,
    "attribute": _attribute,
    "sweep": _sweep,
    "profile": _profile,
    "validate": _validate,
    "bench": _bench,
}


def require_alike(first: Configuration, last: Configuration) -> None:
    """Raise ``Untold`` where two configurations differ in more than toggles."""
    if first != msgspec.structs.replace(last, toggles=first.toggles):
        raise Untold("its configurations differ in more than toggles")


def _divided(
    a: Mapping[str, str], b: Mapping[str, str]
) -> tuple[dict[str, str], tuple[dict[str, str], dict[str, str]]]:
    """The toggles that both have alike, and those of each alone."""
    differing = sorted(name for name in {**a, **b} if a.get(name) != b.get(name))
    shared = {name: option for name, option in a.items() if name not in differing}
    own = [{name: one[name] for name in differing if name in one} for one in (a, b)]
    return shared, (own[0], own[1])


def _read(written: object) -> Configuration:
    return msgspec.convert(written, Configuration)


def _written(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
