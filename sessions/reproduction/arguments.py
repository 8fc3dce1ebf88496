"""The words after ``workbench`` that repeat a session's requests.

A request that no command line can express raises ``NotRepeatable`` with the reason, a clause.
Session files come from strangers, so no word of a file becomes an option: names and numbers must
look like ones, and other text only follows ``NAME=`` or an option. Everything else raises
``Unsafe``.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from sessions.errors import SessionError
from sessions.model import SCRIPT, Configuration, Scalar
from sessions.plain_text import is_plain, one_line

_DEFAULT_DATA = "synthetic"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
_OPTION = re.compile(r"[A-Za-z0-9_.+][A-Za-z0-9_.:+/%*-]{0,99}")
SCRIPT_FOLLOWS = "--"  # followed by the command line of a training script
_LONGEST_TEXT = 4096  # characters of a path or value, as of a path on Linux
_SHOWN = 60  # characters of a refused word
GIB = 2**30
_EXACT = ".12g"  # more digits than a person writes, but no digits of the binary rounding


class NotRepeatable(Exception):  # noqa: N818 - carries its reason
    """No command repeats this; the message is a clause with the reason."""


class Unsafe(SessionError):  # noqa: N818 - what a word is, not what went wrong
    """A word of the session is not safe in a command; the sentence names its field."""

    def __init__(self, description: str, value: object) -> None:
        shown = one_line(ascii(value), _SHOWN)
        super().__init__(
            f"No script can run this session again: its {description} is {shown}, which is not "
            "safe in a command."
        )


def name(value: object, description: str) -> str:
    """Return a name from a file as a word; raise ``Unsafe`` for text that is no name."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise Unsafe(description, value)
    return value


def text(value: str, description: str) -> str:
    """Return text from a file that follows an option; raise ``Unsafe`` for control characters."""
    if not value or len(value) > _LONGEST_TEXT or not is_plain(value):
        raise Unsafe(description, value)
    return value


def configuration_words(
    configuration: Configuration,
    toggles: Mapping[str, str],
    extra: Sequence[str],
    output: str | os.PathLike[str] | None,
) -> list[str]:
    """Return the words that name a configuration with these toggles.

    ``extra`` words come before the seed.
    """
    if configuration.family == SCRIPT:
        return _of_script(configuration, toggles, extra, output)
    words = [name(configuration.family, "family")]
    words += option_words("--preset", name(configuration.preset, "preset"))
    words += option_words("--workload", name(configuration.workload, "workload"))
    for group in (configuration.model, configuration.settings):
        for field, value in sorted(group.items()):
            words += option_words("--set", f"{name(field, 'field')}={written_value(value, field)}")
    for toggle in sorted(toggles):
        words += option_words("--toggle", toggles_text({toggle: toggles[toggle]}))
    if configuration.data != _DEFAULT_DATA:
        words += option_words("--data", text(configuration.data, "data"))
    words += extra
    words += option_words("--seed", str(configuration.seed))
    return words + output_words(output)


def _of_script(
    configuration: Configuration,
    toggles: Mapping[str, str],
    options: Sequence[str],
    output: str | os.PathLike[str] | None,
) -> list[str]:
    """Return the words for a training script; its own command line is behind ``--``."""
    words = _script_words(str(configuration.settings.get("command", "")))
    settings = [
        option_words("--toggle", toggles_text({toggle: toggles[toggle]}))
        for toggle in sorted(toggles)
    ]
    return [*itertools.chain(*settings), *options, *output_words(output), SCRIPT_FOLLOWS, *words]


def _script_words(command: str) -> list[str]:
    """Return the words of a script's command line; raise ``Unsafe`` if there are none."""
    try:
        words = shlex.split(text(command, "command"))
    except ValueError:
        words = []
    if not words:
        raise Unsafe("command", command)
    return words


def start_words(command: Mapping[str, Any], first: bool, last: bool, output: str) -> list[str]:
    """Return the words of a run besides its configuration: its check, and decode states.

    ``first`` and ``last``: True for the part of the run that loaded a state, and that saved one.
    """
    words = ["--check"] if command.get("check") == "last" else []
    if first and (state := command.get("load_state")):
        words += option_words("--load-state", text(str(state), "load_state"))
    if last and command.get("save_state"):
        words += option_words("--save-state", os.fspath(PurePath(output).with_suffix(".state")))
    return words


def claims_words(question: Mapping[str, Any], output: str) -> list[str]:
    """Return the words that measure the claims of a study of claims again."""
    try:
        documents, experiments = question["documents"], question["experiments"]
        words = ["reproduce", *(name(document, "document") for document in documents)]
        for experiment in dict.fromkeys(experiments):
            words += option_words("--only", text(experiment, "experiment"))
        words += ["--budget", number_text(question["budget_s"])]
        if limit_s := question.get("limit_s"):
            words += ["--limit", number_text(limit_s)]
    except (LookupError, TypeError, ValueError, OverflowError):
        raise NotRepeatable("another version of the workbench stored its request") from None
    return words + output_words(output)


def is_calibration(command: Mapping[str, Any]) -> bool:
    """Return True if a comparison measured the machine's own noise."""
    return (
        command.get("type") == "compare"
        and command.get("base") == command.get("other")
        and not any(command.get(field) for field in ("predict", "floor", "before_s"))
    )


def option_words(name: str, value: str) -> list[str]:
    """Return two words, or one where the value would be taken for an option itself."""
    if value.startswith("-"):
        return [f"{name}={value}"] if name.startswith("--") else [f"{name}{value}"]
    return [name, value]


def output_words(output: str | os.PathLike[str] | None) -> list[str]:
    """Return the words that say where the session goes, if anywhere."""
    return [] if output is None else option_words("-o", text(os.fspath(output), "file name"))


def number_text(number: float) -> str:
    """Return a number as a person writes it."""
    return format(number, _EXACT)


def toggles_text(toggles: Mapping[str, str]) -> str:
    """Join toggles into one word; raises ``Unsafe`` for what is neither a toggle nor an option."""
    for toggle, option in toggles.items():
        if not isinstance(option, str) or not _OPTION.fullmatch(option):
            raise Unsafe(f"option of the toggle {one_line(ascii(toggle), _SHOWN)}", option)
    return ",".join(f"{name(toggle, 'toggle')}={option}" for toggle, option in toggles.items())


def comparison_words(
    base: Configuration, other: Configuration, facts: Mapping[str, Any], output: str | None
) -> list[str]:
    """Return the words that compare two configurations, which differ only in toggles.

    ``facts`` say how: the seconds ``budget_s``, the share ``region``, the ``order`` of the pairs,
    and ``build_count``, how often both were to be built.
    """
    words: list[str] = []
    shared, sides = divide_toggles(base.toggles, other.toggles)
    for side, side_toggles in zip(("--a", "--b"), sides, strict=True):
        words += option_words(side, toggles_text(side_toggles)) if side_toggles else []
    words += ["--budget", number_text(facts["budget_s"])]
    words += ["--region", number_text(100 * facts["region"])]
    if order := facts.get("order"):
        words += option_words("--order", name(order, "order of the pairs"))
    if count := facts.get("build_count"):
        words += ["--builds", number_text(count)]
    return ["ab", *configuration_words(base, shared, words, output)]


def require_alike(first: Configuration, last: Configuration) -> None:
    """Raise ``NotRepeatable`` where two configurations differ in more than toggles."""
    if first != msgspec.structs.replace(last, toggles=first.toggles):
        raise NotRepeatable("its configurations differ in more than toggles")


def divide_toggles(
    a: Mapping[str, str], b: Mapping[str, str]
) -> tuple[dict[str, str], tuple[dict[str, str], dict[str, str]]]:
    """Return the toggles that both have alike, and those of each alone."""
    differing = sorted(toggle for toggle in {**a, **b} if a.get(toggle) != b.get(toggle))
    shared = {toggle: option for toggle, option in a.items() if toggle not in differing}
    differences = [
        {toggle: toggles[toggle] for toggle in differing if toggle in toggles} for toggles in (a, b)
    ]
    return shared, (differences[0], differences[1])


def written_value(value: Scalar, field: str) -> str:
    """Return a field's value as a word; raise ``Unsafe`` if it is not safe in a command."""
    if isinstance(value, bool):
        return "true" if value else "false"
    written = str(value)
    return text(written, f"field {one_line(ascii(field), _SHOWN)}") if written else ""
