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
    NotRepeatable,
    Unsafe,
    comparison_words,
    configuration_words,
    divide_toggles,
    is_calibration,
    name,
    number_text,
    option_words,
    output_words,
    require_alike,
    start_words,
    text,
    toggles_text,
    written_value,
)
from sessions.studies import sweep
from sessions.studies.attribution.estimation import WHOLE_STEP


def order_words(command: Mapping[str, Any], output: str) -> list[str]:
    """Return the words that repeat a run, a comparison, a study or a benchmark.

    ``command``: as an ``Order`` keeps it. Its noise floor depends on the machine and is left out.
    """
    try:
        return _KINDS[command["type"]](command, output)
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError):
        raise NotRepeatable("another version of the workbench stored its request") from None


def _start(command: Mapping[str, Any], output: str) -> list[str]:
    configuration, words = _read(command["configuration"]), []
    for length in ("steps", "seconds"):
        if command[length] is not None:
            words += [f"--{length}", number_text(command[length])]
    words += start_words(command, True, True, output)
    return ["run", *configuration_words(configuration, configuration.toggles, words, output)]


def _compare(command: Mapping[str, Any], output: str) -> list[str]:
    base, other = _read(command["base"]), _read(command["other"])
    if is_calibration(command):
        words = ["--budget", number_text(command["budget_s"])]
        return ["calibrate", *configuration_words(base, base.toggles, words, None)]
    require_alike(base, other)
    return comparison_words(base, other, command, output)


def _attribute(command: Mapping[str, Any], output: str) -> list[str]:
    base = _read(command["base"])
    words = option_words("--toggles", toggles_text(command["toggles"]))
    words += ["--mode", name(command["mode"], "mode"), "--budget", number_text(command["budget_s"])]
    words += ["--region", number_text(100 * command["region"])]
    if command["mode"] == "shapley":
        words += ["--orders", number_text(command["orders"])]
    if command.get("timed", WHOLE_STEP) != WHOLE_STEP:
        words += ["--timed", name(command["timed"], "timed part")]
    return ["attribute", *configuration_words(base, base.toggles, words, output)]


def _optimize(command: Mapping[str, Any], output: str) -> list[str]:
    base = _read(command["base"])
    words = option_words("--objective", name(command["objective"], "objective"))
    words += ["--budget", number_text(command["budget_s"])]
    if command["memory_limit"] is not None:
        words += ["--memory-limit", number_text(command["memory_limit"] / GIB)]
    if command["max_error"] is not None:
        words += ["--max-error", number_text(command["max_error"])]
    for toggles in ("include", "exclude"):
        if names := [name(toggle, "toggle") for toggle in command[toggles]]:
            words += option_words(f"--{toggles}", ",".join(names))
    words += ["--region", number_text(100 * command["region"])]
    return ["optimize", *configuration_words(base, base.toggles, words, output)]


def _sweep(command: Mapping[str, Any], output: str) -> list[str]:
    base, words = _read(command["base"]), []
    for field, values in command["axes"].items():
        listed = ",".join(written_value(value, field) for value in values)
        if sweep.read_values(listed, field) != values:
            raise NotRepeatable(f"the values of {field} cannot be written in a command")
        words += option_words("--over", f"{name(field, 'field')}={listed}")
    for arm in command["arms"]:
        words += option_words("--arm", toggles_text(arm))
    words += ["--seconds-per-point", number_text(command["seconds"])]
    return ["sweep", *configuration_words(base, base.toggles, words, output)]


def _scale(command: Mapping[str, Any], output: str) -> list[str]:
    base = _read(command["base"])
    words = ["--ranks", ",".join(map(number_text, command["ranks"]))]
    words += option_words("--mode", name(command["mode"], "mode"))
    words += option_words("--kinds", ",".join(name(kind, "kind") for kind in command["kinds"]))
    words += option_words("--with", toggles_text(command["toggles"])) if command["toggles"] else []
    words += ["--budget", number_text(command["budget_s"])]
    words += ["--region", number_text(100 * command["region"])]
    words += [] if command["lanes"] else ["--no-lanes"]
    return ["scale", *configuration_words(base, base.toggles, words, output)]


def _profile(command: Mapping[str, Any], output: str) -> list[str]:
    configurations = list(map(_read, command["configurations"]))
    first, last = configurations[0], configurations[-1]
    if len(configurations) > 2:
        raise NotRepeatable("more than two configurations were profiled")
    require_alike(first, last)
    words = ["--steps", number_text(command["steps"])]
    toggles = first.toggles
    if len(configurations) == 2:
        toggles, sides = divide_toggles(first.toggles, last.toggles)
        for side, side_toggles in zip(("--a", "--b"), sides, strict=True):
            words += option_words(side, toggles_text(side_toggles))
    if command["traces"]:
        words += option_words("--trace", os.fspath(PurePath(output).with_suffix(".json.gz")))
    return ["profile", *configuration_words(first, toggles, words, output)]


def _validate(command: Mapping[str, Any], output: str) -> list[str]:
    configuration = _read(command["configuration"])
    words = ["--steps", number_text(command["steps"])]
    for batch in command["batches"]:
        words += ["--batch", number_text(batch)]
    if command["expect_speedup"] is not None:
        words += ["--expect-speedup", number_text(command["expect_speedup"])]
    words += ["--budget", number_text(command["budget_s"])]
    return ["validate", *configuration_words(configuration, configuration.toggles, words, output)]


def _model(title: str) -> str:
    """Return a public model's title as a word; raise ``Unsafe`` for one that reads as an option."""
    if title.startswith("-"):
        raise Unsafe("model", title)
    return text(title, "model")


def _bench(command: Mapping[str, Any], output: str) -> list[str]:
    if any(command[field] for field in ("cases", "implementations", "forward_only")):
        raise NotRepeatable("only some cases or implementations were timed")
    words = ["bench", *(name(operator, "operator") for operator in command["operators"])]
    if command["dtype"]:
        words += option_words("--dtype", name(command["dtype"], "dtype"))
    words += ["--every-case"] * bool(command["every_case"]) + ["--tune"] * bool(command["tune"])
    if (models := command.get("model_shapes")) is not None:
        words += ["--model-shapes", *(_model(model) for model in models)]
    if command["budget_s"] is not None:
        words += ["--budget", number_text(command["budget_s"])]
    return words + output_words(output)


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
