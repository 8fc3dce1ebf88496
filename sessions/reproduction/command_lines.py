"""Commands and Python code that run a segment or a session again."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from sessions.columns import row_count
from sessions.errors import Lacking
from sessions.model import (
    HF,
    KERNELS,
    SCRIPT,
    Configuration,
    Order,
    PairedComparison,
    Segment,
    Session,
    Study,
)
from sessions.plain_text import one_line
from sessions.reproduction import arguments as _arguments
from sessions.reproduction import order_arguments
from sessions.reproduction.arguments import NotRepeatable
from sessions.studies import breakdown, claims
from sessions.verdicts.comparison import Arm, compare_segments
from sessions.verdicts.ratios import UNPAIRED
from sessions.verdicts.verdict import REGION

_LONGEST_COMMENT = 400  # characters
_SHOWN = 100  # characters of a title
_SOURCE = "source="  # followed by the file of a user's model

HINT_BUDGET_S = 20.0
# Titles of orders without a study, by the type of their command.
_ORDER_TITLES = {
    "start": "A run",
    "compare": "A comparison",
    "attribute": "An attribution",
    "optimize": "An optimization",
    "sweep": "A sweep",
    "scale": "A scaling study",
    "profile": "A profile",
    "validate": "A checklist",
    "bench": "A benchmark",
}

# Frames of the calls. A call that fails (a check, a verdict) does not prevent the next calls; only
# Ctrl+C does, whose exit code is 130.
_SHELL = """\
#!/bin/sh
failed=
trap 'printf %%s "$failed" >&2' EXIT
trap 'exit 130' INT
workbench() {
    command workbench "$@" && return
    code=$?
    failed="${failed}exit code $code: workbench $*
"
    [ $code -ne 130 ] || exit $code
}

%s

[ -z "$failed" ]
"""
_PYTHON = """\
import shlex
import sys

from workbench.cli import main

calls = [
%s
]
failed = {}
for call in calls:
    if code := main(call):
        failed[shlex.join(["workbench", *call])] = code
    if code == 130:
        break
for line, code in failed.items():
    print(f"exit code {code}: {line}", file=sys.stderr)
sys.exit(130 if 130 in failed.values() else bool(failed))
"""

Call = list[str] | str  # the words after ``workbench``, or the reason why there are none
Part = tuple[str, Callable[[str], list[str]]]  # a title, and a call by its output


def arguments(
    configuration: Configuration,
    steps: int | None = None,
    output: str | os.PathLike[str] | None = None,
    extra: Sequence[str] = (),
) -> list[str]:
    """Return the arguments after ``workbench`` that run this configuration, with ``extra``.

    Raises ``SessionError`` for a configuration with a word that is not safe in a command.
    """
    if configuration.family == KERNELS:
        words = ["bench", _arguments.name(configuration.preset, "operator"), "--every-case"]
        dtype = _arguments.name(configuration.settings.get("dtype"), "dtype")
        words += _arguments.option_words("--dtype", dtype)
        return words + _arguments.output_words(output)
    if configuration.family == SCRIPT:
        steps = None  # the run ends by itself
    length = [] if steps is None else _arguments.option_words("--steps", str(steps))
    toggles = configuration.toggles
    extra_words = [*length, *extra]
    return ["run", *_arguments.configuration_words(configuration, toggles, extra_words, output)]


def _arms(comparison: PairedComparison, session: Session) -> tuple[Segment, ...]:
    """Return the segments of a comparison that ``workbench ab`` can repeat; else none."""
    facts = comparison.facts
    places = facts.get("segments")
    known = range(len(session.segments))
    is_complete = all(isinstance(facts.get(name), int | float) for name in ("budget_s", "region"))
    if not is_complete or not isinstance(places, list):
        return ()
    if not all(isinstance(index, int) and index in known for index in places):
        return ()
    arms = tuple(session.segments[index] for index in places)
    without_toggles = [msgspec.structs.replace(arm.configuration, toggles={}) for arm in arms]
    toggles = [arm.configuration.toggles.keys() for arm in arms]
    alike = len(arms) == 2 and without_toggles[0] == without_toggles[1] and toggles[0] == toggles[1]
    return arms if alike else ()


def command(
    configuration: Configuration,
    steps: int | None = None,
    output: str | os.PathLike[str] | None = None,
) -> str:
    """Return one line for a POSIX shell, quoted where it must be.

    A comment above it says which file's code it runs, if any. Raises as ``arguments`` does.
    """
    words = arguments(configuration, steps, output)
    caution = [f"# {line}" for line in _caution(words)]
    return "\n".join([*caution, shlex.join(["workbench", *words])])


def _caution(words: Sequence[str]) -> list[str]:
    """Return a line about the file, or the command, whose code these words run, if any."""
    if _arguments.SCRIPT_FOLLOWS in words:
        script = shlex.join(words[words.index(_arguments.SCRIPT_FOLLOWS) + 1 :])
        return [
            one_line(
                f"CAUTION: the next command runs {script!r} in the current folder. Read it first "
                "if somebody else made this session.",
                _LONGEST_COMMENT,
            )
        ]
    files = [word.removeprefix(_SOURCE) for word in words if word.startswith(_SOURCE)]
    files = [file for file in files if not file.startswith(HF)]  # configurations hold no code
    return [
        one_line(
            f"CAUTION: the next command runs the Python code of {file!r}. Read that file first if "
            "somebody else made this session.",
            _LONGEST_COMMENT,
        )
        for file in files
    ]


def segment_command(segment: Segment) -> str:
    """Return the command for as many steps as the segment has."""
    return command(segment.configuration, row_count(segment.steps) or None)


def verdict_hint(arms: Sequence[Arm], titles: Mapping[str, str]) -> str:
    """Return a line with the command that gives the first unpaired ratio a verdict, if any does.

    ``titles``: the session's. Toggles that a segment's label does not name have their defaults and
    are left out, where the titles of toggles are known.
    """
    base = next((arm for arm in arms if arm.ratio is None), None)
    for arm in arms:
        if base is None or arm.ratio is None or arm.ratio.verdict != UNPAIRED:
            continue
        first, second = (_named_alone(candidate.segment, titles) for candidate in (base, arm))
        shared = {**first.toggles, **second.toggles}
        first, second = (
            msgspec.structs.replace(
                configuration,
                toggles={
                    name: configuration.toggles[name]
                    for name in shared
                    if name in configuration.toggles
                },
            )
            for configuration in (base.segment.configuration, arm.segment.configuration)
        )
        if first == second:
            continue
        with contextlib.suppress(NotRepeatable):
            _arguments.require_alike(first, second)
            facts = {"budget_s": HINT_BUDGET_S, "region": REGION}
            words = _arguments.comparison_words(first, second, facts, None)
            return f"For a verdict on an unpaired ratio: {shlex.join(['workbench', *words])}"
    return ""


def session_hint(session: Session) -> str:
    """Return ``verdict_hint`` for the segments of a session."""
    runs = [(session, segment) for segment in session.segments]
    if not runs:
        return ""
    arms, _ = compare_segments(runs, [segment.title for segment in session.segments])
    return verdict_hint(arms, session.titles)


def _named_alone(segment: Segment, titles: Mapping[str, str]) -> Configuration:
    """Return the segment's configuration with the toggles that its label names, or all if unknown.

    A label has the titles of the options that are not the device's defaults.
    """

    def is_named(name: str, option: str) -> bool:
        name = f"toggles.{name}"
        title = f"{titles.get(name)}: {titles.get(f'{name}={option}')}"
        return name not in titles or title in segment.label.split(", ")

    configuration = segment.configuration
    toggles = {
        name: option for name, option in configuration.toggles.items() if is_named(name, option)
    }
    return msgspec.structs.replace(configuration, toggles=toggles)


def repeatable(session: Session) -> bool:
    """Return True if the session contains anything that ``session_commands`` could repeat."""
    return bool(session.segments or session.orders or session.studies)


def session_commands(session: Session, stem: str = "again") -> str:
    """Return a shell script that repeats what the session did, each part into its own file.

    Studies (attribution, sweep, scaling, profile, checklist, claims), comparisons, calibrations and
    benchmarks are requested again as they were. Everything else runs for as many steps as before.
    Files without orders contain only the requests of comparisons and claims; of other studies the
    segments run. Interrupted requests are repeated like complete ones. A comment stands for what no
    command can request, and for what was never measured. The script repeats all parts, lists those
    that did not exit with 0, and then exits with 1 itself; with 130 at once if one is interrupted.
    Raises ``Lacking`` if there is nothing to repeat, ``SessionError`` if a word of the session
    is not safe in a command.
    """
    calls = _calls(session, stem)
    return _SHELL % "\n".join(
        f"# {call}" if isinstance(call, str) else shlex.join(["workbench", *call]) for call in calls
    )


def session_python(session: Session, stem: str = "again") -> str:
    """Return the script of ``session_commands`` in Python."""
    calls = _calls(session, stem)
    return _PYTHON % "\n".join(
        f"    # {call}" if isinstance(call, str) else f"    {call!r}," for call in calls
    )


def _calls(session: Session, stem: str) -> list[Call]:
    if not repeatable(session):
        title = one_line(session.title, _SHOWN)
        raise Lacking(f"{title!r} has no segments, so there is nothing to run again.")
    calls: list[Call] = []
    for title, call in _parts(session):
        number = sum(isinstance(line, list) for line in calls)
        try:
            words = call(f"{stem}-{number:04d}.h5")
        except NotRepeatable as why:
            calls.append(one_line(f"{title} is not repeated: {why}", _LONGEST_COMMENT))
            continue
        # One call times all contenders of an operator; each is a segment.
        if session.orders or words[0] != "bench" or all(words[:-1] != line[:-1] for line in calls):
            calls += [*_caution(words), words]
    return calls


def _parts(session: Session) -> Iterator[Part]:
    """Yield what the session did, in parts that one command repeats."""
    end = Order(
        start_s=0.0,
        command={},
        segments=len(session.segments),
        comparisons=len(session.comparisons),
        studies=len(session.studies),
    )
    edges = [*session.orders, end]
    yield from _before_orders(session, edges[0])
    repeated = set()
    for order, after in itertools.pairwise(edges):
        if order.claims is None:
            yield from _ordered(session, order, after)
        elif order.claims not in repeated:
            repeated.add(order.claims)
            yield _claims(session.studies[order.claims])


def _before_orders(session: Session, end: Order) -> Iterator[Part]:
    """Yield the parts before the first stored order; of studies only claims hold their request."""
    yield from _runs(session, session.segments[: end.segments])
    for study in session.studies[: end.studies]:
        known = any(study is session.studies[order.claims] for order in session.orders
                    if order.claims is not None)  # fmt: skip
        if study.kind == claims.KIND and not known:
            yield _claims(study)
        elif not known and not study.facts.get(breakdown.WATCHED):
            yield _title(study), _without_request


def _ordered(session: Session, order: Order, after: Order) -> Iterator[Part]:
    """Yield what one order requested, also if it was interrupted before there was an answer."""
    segments = session.segments[order.segments : after.segments]
    studies = session.studies[order.studies : after.studies]
    kind = str(order.command.get("type", ""))
    answered = studies or after.comparisons > order.comparisons
    if kind == "start" and segments:
        yield from _runs(session, segments, order.command)
    elif kind in _ORDER_TITLES:
        title = _title(studies[0]) if studies else _ORDER_TITLES[kind]
        call = functools.partial(order_arguments.order_words, order.command)
        if not segments and not answered:
            yield title, functools.partial(_unmeasured, call)
        elif answered or not order.command.get("before_s"):  # otherwise it continued another
            yield title, call


def _runs(
    session: Session, segments: Sequence[Segment], start: Mapping[str, Any] | None = None
) -> Iterator[Part]:
    """Yield the segments, in pairs if they were compared.

    ``start``: the command, if known. The state that it loads belongs to the first segment, the
    state that it saves to the last.
    """
    compared: dict[int, tuple[PairedComparison, tuple[Segment, ...]]] = {}
    for comparison in session.comparisons:
        for arm in (arms := _arms(comparison, session)):
            compared[id(arm)] = comparison, arms
    for segment in segments:
        if id(segment) not in compared:
            ends = segment is segments[0], segment is segments[-1]
            yield segment.title, functools.partial(_run, segment, start or {}, *ends)
            continue
        comparison, arms = compared[id(segment)]
        if segment is arms[0]:
            yield "A comparison", functools.partial(_ab, comparison, arms)


def _ab(comparison: PairedComparison, arms: tuple[Segment, ...], output: str) -> list[str]:
    base, other = (arm.configuration for arm in arms)
    return _arguments.comparison_words(base, other, comparison.facts, output)


def _run(
    segment: Segment, start: Mapping[str, Any], first: bool, last: bool, output: str
) -> list[str]:
    words = _arguments.start_words(start, first, last, output)
    return arguments(segment.configuration, row_count(segment.steps) or None, output, words)


def _unmeasured(call: Callable[[str], list[str]], output: str) -> list[str]:
    words = shlex.join(["workbench", *call(output)])
    why = "it was refused or interrupted before anything was measured"
    raise NotRepeatable(f"{why}; its command was {words}")


def _claims(study: Study) -> Part:
    return _title(study), lambda output: _arguments.claims_words(study.request, output)


def _title(study: Study) -> str:
    return f"The {one_line(study.kind, _SHOWN)} {one_line(study.title, _SHOWN)!r}"


def _without_request(_: str) -> list[str]:
    raise NotRepeatable("this file does not contain its request")
