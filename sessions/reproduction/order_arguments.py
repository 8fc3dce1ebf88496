"""The words after ``workbench`` that repeat one order of a session."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import msgspec

from sessions.model import Configuration
from sessions.reproduction.arguments import (
    GIB,
    Unsafe,
    Untold,
    chosen,
    divide_toggles,
    exactly,
    is_calibration,
    name,
    of_comparison,
    of_configuration,
    of_start,
    option,
    require_alike,
    saved_to,
    text,
    written_value,
)
from sessions.studies import sweep
from sessions.studies.attribution.estimation import WHOLE_STEP


def of_order(command: Mapping[str, Any], output: str) -> list[str]:
    """Return the words that repeat a run, a comparison, a study or a benchmark.

    ``command``: as an ``Order`` keeps it. Its noise floor depends on the machine and is left out.
    """
    try:
        return _KINDS[command["type"]](command, output)
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError):
        raise Untold("another version of the workbench wrote down what was asked for") from None


def _start(command: Mapping[str, Any], output: str) -> list[str]:
    configuration, words = _read(command["configuration"]), []
    for length in ("steps", "seconds"):
        if command[length] is not None:
            words += [f"--{length}", exactly(command[length])]
    words += of_start(command, True, True, output)
    return ["run", *of_configuration(configuration, configuration.toggles, words, output)]


def _compare(command: Mapping[str, Any], output: str) -> list[str]:
    base, other = _read(command["base"]), _read(command["other"])
    if is_calibration(command):
        words = ["--budget", exactly(command["budget_s"])]
        return ["calibrate", *of_configuration(base, base.toggles, words, None)]
    require_alike(base, other)
    return of_comparison(base, other, command, output)


def _attribute(command: Mapping[str, Any], output: str) -> list[str]:
    base = _read(command["base"])
    words = option("--toggles", chosen(command["toggles"]))
    words += ["--mode", name(command["mode"], "mode"), "--budget", exactly(command["budget_s"])]
    words += ["--region", exactly(100 * command["region"])]
    if command["mode"] == "shapley":
        words += ["--orders", exactly(command["orders"])]
    if command.get("timed", WHOLE_STEP) != WHOLE_STEP:
        words += ["--timed", name(command["timed"], "timed part")]
    return ["attribute", *of_configuration(base, base.toggles, words, output)]


def _optimize(command: Mapping[str, Any], output: str) -> list[str]:
    base = _read(command["base"])
    words = option("--objective", name(command["objective"], "objective"))
    words += ["--budget", exactly(command["budget_s"])]
    if command["memory_limit"] is not None:
        words += ["--memory-limit", exactly(command["memory_limit"] / GIB)]
    if command["max_error"] is not None:
        words += ["--max-error", exactly(command["max_error"])]
    for toggles in ("include", "exclude"):
        if names := [name(toggle, "toggle") for toggle in command[toggles]]:
            words += option(f"--{toggles}", ",".join(names))
    words += ["--region", exactly(100 * command["region"])]
    return ["optimize", *of_configuration(base, base.toggles, words, output)]


def _sweep(command: Mapping[str, Any], output: str) -> list[str]:
    base, words = _read(command["base"]), []
    for field, values in command["axes"].items():
        listed = ",".join(written_value(value, field) for value in values)
        if sweep.read_values(listed, field) != values:
            raise Untold(f"the values of {field} cannot be written as words")
        words += option("--over", f"{name(field, 'field')}={listed}")
    for arm in command["arms"]:
        words += option("--arm", chosen(arm))
    words += ["--seconds-per-point", exactly(command["seconds"])]
    return ["sweep", *of_configuration(base, base.toggles, words, output)]


def _scale(command: Mapping[str, Any], output: str) -> list[str]:
    base = _read(command["base"])
    words = ["--ranks", ",".join(map(exactly, command["ranks"]))]
    words += option("--mode", name(command["mode"], "mode"))
    words += option("--kinds", ",".join(name(kind, "kind") for kind in command["kinds"]))
    words += option("--with", chosen(command["toggles"])) if command["toggles"] else []
    words += ["--budget", exactly(command["budget_s"])]
    words += ["--region", exactly(100 * command["region"])]
    words += [] if command["lanes"] else ["--no-lanes"]
    return ["scale", *of_configuration(base, base.toggles, words, output)]


def _profile(command: Mapping[str, Any], output: str) -> list[str]:
    configurations = list(map(_read, command["configurations"]))
    first, last = configurations[0], configurations[-1]
    if len(configurations) > 2:
        raise Untold("more than two configurations were profiled")
    require_alike(first, last)
    words = ["--steps", exactly(command["steps"])]
    toggles = first.toggles
    if len(configurations) == 2:
        toggles, sides = divide_toggles(first.toggles, last.toggles)
        for side, own in zip(("--a", "--b"), sides, strict=True):
            words += option(side, chosen(own))
    if command["traces"]:
        words += option("--trace", os.fspath(PurePath(output).with_suffix(".json.gz")))
    return ["profile", *of_configuration(first, toggles, words, output)]


def _validate(command: Mapping[str, Any], output: str) -> list[str]:
    configuration = _read(command["configuration"])
    words = ["--steps", exactly(command["steps"])]
    for batch in command["batches"]:
        words += ["--batch", exactly(batch)]
    if command["expect_speedup"] is not None:
        words += ["--expect-speedup", exactly(command["expect_speedup"])]
    words += ["--budget", exactly(command["budget_s"])]
    return ["validate", *of_configuration(configuration, configuration.toggles, words, output)]


def _model(title: str) -> str:
    """Return a public model's title as a word; raise ``Unsafe`` for one that reads as an option."""
    if title.startswith("-"):
        raise Unsafe("model", title)
    return text(title, "model")


def _bench(command: Mapping[str, Any], output: str) -> list[str]:
    if any(command[field] for field in ("cases", "implementations", "forward_only")):
        raise Untold("only some cases or implementations were timed")
    words = ["bench", *(name(operator, "operator") for operator in command["operators"])]
    if command["dtype"]:
        words += option("--dtype", name(command["dtype"], "dtype"))
    words += ["--every-case"] * bool(command["every_case"]) + ["--tune"] * bool(command["tune"])
    if (models := command.get("model_shapes")) is not None:
        words += ["--model-shapes", *(_model(model) for model in models)]
    if command["budget_s"] is not None:
        words += ["--budget", exactly(command["budget_s"])]
    return words + saved_to(output)


def _read(written: object) -> Configuration:
    return msgspec.convert(written, Configuration)


_KINDS = {
    "start": _start,
    "compare": _compare,
    "attribute": _attribute,
    "optimize": _optimize,
    "sweep": _sweep,
    "scale": _scale,
    "profile": _profile,
    "validate": _validate,
    "bench": _bench,
}
