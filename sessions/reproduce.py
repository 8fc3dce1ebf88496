"""A segment as the command, or the Python, that runs it again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

import msgspec

from sessions.columns import row_count
from sessions.errors import SessionError
from sessions.model import KERNELS, Configuration, PairedComparison, Scalar, Segment, Session

_DEFAULT_DATA = "synthetic"


def arguments(
    configuration: Configuration,
    steps: int | None = None,
    output: str | os.PathLike[str] | None = None,
) -> list[str]:
    """The arguments after ``workbench`` that run this configuration."""
    if configuration.family == KERNELS:
        found = ["bench", configuration.preset, "--every-case"]
        found += _option("--dtype", str(configuration.settings["dtype"]))
        return found + (_option("-o", os.fspath(output)) if output is not None else [])
    length = [] if steps is None else _option("--steps", str(steps))
    return ["run", *_configured(configuration, configuration.toggles, length, output)]


def _configured(
    configuration: Configuration,
    toggles: Mapping[str, str],
    asked: Sequence[str],
    output: str | os.PathLike[str] | None,
) -> list[str]:
    """What names a configuration with these toggles; ``asked`` comes before its seed."""
    found = [configuration.family]
    found += _option("--preset", configuration.preset)
    found += _option("--workload", configuration.workload)
    for group in (configuration.model, configuration.settings):
        for name, value in sorted(group.items()):
            found += _option("--set", f"{name}={_written(value)}")
    for name, option in sorted(toggles.items()):
        found += _option("--toggle", f"{name}={option}")
    if configuration.data != _DEFAULT_DATA:
        found += _option("--data", configuration.data)
    found += asked
    found += _option("--seed", str(configuration.seed))
    if output is not None:
        found += _option("-o", os.fspath(output))
    return found


def _arms(comparison: PairedComparison, session: Session) -> tuple[Segment, ...]:
    """The segments of a comparison that ``workbench ab`` can repeat; none of another one."""
    facts = comparison.facts
    places = facts.get("segments")
    known = range(len(session.segments))
    asked = all(isinstance(facts.get(name), int | float) for name in ("budget_s", "region"))
    if not asked or not isinstance(places, list) or any(each not in known for each in places):
        return ()
    arms = tuple(session.segments[each] for each in places)
    rest = [msgspec.structs.replace(arm.configuration, toggles={}) for arm in arms]
    toggles = [arm.configuration.toggles.keys() for arm in arms]
    alike = len(arms) == 2 and rest[0] == rest[1] and toggles[0] == toggles[1]
    return arms if alike else ()


def _ab(
    comparison: PairedComparison,
    arms: tuple[Segment, ...],
    output: str | os.PathLike[str],
) -> list[str]:
    """The arguments after ``workbench`` that reach such a verdict again."""
    a, b = (arm.configuration.toggles for arm in arms)
    facts, asked = comparison.facts, []
    differing = sorted(name for name in a if a[name] != b[name])
    for side, toggles in (("--a", a), ("--b", b)) if differing else ():
        asked += _option(side, ",".join(f"{name}={toggles[name]}" for name in differing))
    asked += ["--budget", f"{facts['budget_s']:g}", "--region", f"{100 * facts['region']:g}"]
    if order := facts.get("order"):
        asked += _option("--order", str(order))
    shared = {name: option for name, option in a.items() if name not in differing}
    return ["ab", *_configured(arms[0].configuration, shared, asked, output)]


def command(
    configuration: Configuration,
    steps: int | None = None,
    output: str | os.PathLike[str] | None = None,
) -> str:
    """One line for a POSIX shell, quoted where it must be."""
    return shlex.join(["workbench", *arguments(configuration, steps, output)])


def python(
    configuration: Configuration,
    steps: int | None = None,
    output: str | os.PathLike[str] | None = None,
) -> str:
    """A Python script that does the same; it ends with the command's exit status."""
    return _script([arguments(configuration, steps, output)])


def segment_command(segment: Segment, output: str | os.PathLike[str] | None = None) -> str:
    """The command for as many steps as the segment has."""
    return command(segment.configuration, row_count(segment.steps) or None, output)


def session_commands(session: Session, stem: str = "again") -> str:
    """A shell script that runs every segment again, each into a file of its own.

    Two segments that were compared are compared again. How a study (attribution, sweep, profile,
    checklist, claims) was asked for is not told: of those, the segments run. Raises
    ``SessionError`` for a session without segments.
    """
    lines = ["#!/bin/sh", "set -e"]
    lines += [shlex.join(["workbench", *call]) for call in _calls(session, stem)]
    return "\n".join(lines) + "\n"


def session_python(session: Session, stem: str = "again") -> str:
    """As ``session_commands``, in Python."""
    return _script(_calls(session, stem))


def _calls(session: Session, stem: str) -> list[list[str]]:
    if not session.segments:
        raise SessionError(f"{session.title!r} has no segments, so there is nothing to run again.")
    calls: list[list[str]] = []
    compared: dict[int, tuple[PairedComparison, tuple[Segment, ...]]] = {}
    for comparison in session.comparisons:
        for arm in (arms := _arms(comparison, session)):
            compared[id(arm)] = comparison, arms
    for segment in session.segments:
        if id(segment) in compared:
            comparison, arms = compared[id(segment)]
            if segment is arms[0]:
                calls.append(_ab(comparison, arms, f"{stem}-{len(calls):04d}.h5"))
            continue
        steps = row_count(segment.steps) or None
        call = arguments(segment.configuration, steps, f"{stem}-{len(calls):04d}.h5")
        # One call times all contenders of an operator, each of which is a segment.
        if segment.configuration.family != KERNELS or all(call[:-1] != c[:-1] for c in calls):
            calls.append(call)
    return calls


def _script(calls: Sequence[Sequence[str]]) -> str:
    lines = ["import sys", "", "from workbench.cli import main", ""]
    for call in calls[:-1]:
        lines.append(f"if status := main({list(call)!r}):\n    sys.exit(status)")
    lines.append(f"sys.exit(main({list(calls[-1])!r}))")
    return "\n".join(lines) + "\n"


def _option(name: str, value: str) -> list[str]:
    """Two words, or one where the value would be taken for an option itself."""
    if value.startswith("-"):
        return [f"{name}={value}"] if name.startswith("--") else [f"{name}{value}"]
    return [name, value]


def _written(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
