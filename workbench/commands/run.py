"""Run one configuration without a window; print what was measured, and save it if asked."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from sessions import hdf5, statistics
from sessions.errors import SessionError
from sessions.model import Configuration, Phase, Scalar, Segment, Session
from sessions.tables import segments_table
from workbench import headless, protocol
from workbench.commands._command import (
    DONE,
    FAILED,
    INTERRUPTED,
    Command,
    Failed,
    Mistaken,
    answer,
    answer_json,
    check_output,
    say,
)

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
SECONDS = 10.0  # where neither steps nor seconds are asked for


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("family", help="model family; `workbench doctor` lists them")
    parser.add_argument("--preset", default="", help="default: the one that fits this device")
    parser.add_argument("--workload", default="forward", help="what a step does; default: forward")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="a field of model or workload",
    )
    parser.add_argument(
        "--toggle",
        action="append",
        default=[],
        metavar="NAME[=OPTION]",
        help="an optimization; where it has two options, its name switches it",
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=_positive_int, help="end after so many steps")
    length.add_argument("--seconds", type=_positive_float, help=f"default: {SECONDS:g}")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data; default: 0")
    parser.add_argument("--data", default="synthetic", help="a text file, whose bytes are tokens")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.h5", help="save the session")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.output is not None:
        check_output(arguments.output)
    seconds = arguments.seconds
    if arguments.steps is None and seconds is None:
        seconds = SECONDS
    with _Bar(arguments.steps, seconds) as bar:
        outcome = headless.run(
            lambda catalogue: configure(catalogue, arguments),
            steps=arguments.steps,
            seconds=seconds,
            watch=bar.watch,
        )
    session = outcome.session
    if outcome.mistake:
        outcome.journal.unlink(missing_ok=True)
        raise Mistaken(outcome.mistake)
    if session.segments:
        session.title = _title(session.segments[-1].configuration)
    for failure in outcome.failures:
        say(f"{failure.sentence} {failure.fix}".strip())
        if failure.kind == "died" and failure.detail:
            say(f"The last that it said:\n{failure.detail}")
    saved = None
    if arguments.output is not None and session.segments:
        _save(session, arguments.output, outcome.journal)
        saved = str(arguments.output)
    if saved is None and session.segments and outcome.reason == "died":
        say(_kept(outcome.journal))
    else:
        outcome.journal.unlink(missing_ok=True)
    if arguments.json:
        answer_json(
            {
                "reason": outcome.reason,
                "file": saved,
                "failures": [msgspec.to_builtins(failure) for failure in outcome.failures],
                "environment": session.environment,
                "segments": [summary(segment) for segment in session.segments],
            }
        )
    else:
        if session.segments:
            answer(segments_table(session).to_markdown())
            for found in session.segments[-1].evidence:
                answer(f"{found.toggle}={found.requested}: {found.status}: {found.text}")
        if saved:
            answer(f"saved {saved}")
    return {"done": DONE, "cancelled": INTERRUPTED}.get(outcome.reason, FAILED)


def configure(catalogue: protocol.Catalogue, arguments: argparse.Namespace) -> Configuration:
    """The configuration that the arguments ask for, in the catalogue's terms."""
    families = {family.name: family for family in catalogue.families}
    workloads = {workload.name: workload for workload in catalogue.workloads}
    family = _known("unknown family", arguments.family, families)
    workload = _known("unknown workload", arguments.workload, workloads)
    model_fields = {field.name: field for field in family.fields}
    step_fields = {field.name: field for field in workload.fields}
    model: dict[str, Scalar] = {}
    settings: dict[str, Scalar] = {}
    for text in arguments.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise Mistaken(f"--set {text}: expected FIELD=VALUE")
        field = _known("--set: unknown field", name, {**model_fields, **step_fields})
        (settings if name in step_fields else model)[name] = _read(field, value)
    toggles = {toggle.name: toggle for toggle in catalogue.toggles}
    chosen = dict(_toggle(text, toggles) for text in arguments.toggle)
    return Configuration(
        family=family.name,
        preset=arguments.preset or family.default_preset,
        model=model,
        workload=workload.name,
        settings=settings,
        toggles=chosen,
        seed=arguments.seed,
        data=arguments.data,
    )


def summary(segment: Segment) -> dict[str, Any]:
    """One segment in numbers, for programs."""
    found = statistics.summarize(statistics.steady_ms(segment))
    return {
        "label": segment.label,
        "configuration": msgspec.to_builtins(segment.configuration),
        "steps": len(segment.steps["t_s"]),
        "steady_steps": found.n,
        "median_ms": found.median,
        "p95_ms": found.p95,
        "clock": statistics.clock(segment),
        "peak_bytes": float(max(segment.steps["peak"], default=float("nan"))),
        "phases": [[Phase(p.phase).title, p.start_s, p.stop_s] for p in segment.phases],
        "evidence": [msgspec.to_builtins(evidence) for evidence in segment.evidence],
        "ledger": segment.ledger,
    }


def _save(session: Session, path: Path, journal: Path) -> None:
    try:
        hdf5.save(session, path)
    except SessionError as error:
        raise Failed(f"{error} {_kept(journal)}") from None


def _kept(journal: Path) -> str:
    return f"What was measured is kept: workbench recover {journal}"


class _Bar:
    """A progress bar on stderr that follows the runner's messages, where a person reads it."""

    def __init__(self, steps: int | None, seconds: float | None) -> None:
        self._steps, self._seconds = steps, seconds
        self._done = 0
        self._first_s: float | None = None
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:<28}"),
            BarColumn(),
            TextColumn("{task.fields[shown]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("Starting the runner", total=None, shown="")

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def watch(self, message: protocol.AnyMessage) -> None:
        """Show what one message tells."""
        match message:
            case protocol.State():
                text = message.text or message.state.capitalize()
                self._progress.update(self._task, description=text)
            case protocol.Progress():
                text = f"{message.task.capitalize()}: {message.text}"
                self._progress.update(self._task, description=text)
            case protocol.Steps():
                self._advance(message)

    def _advance(self, message: protocol.Steps) -> None:
        times = [t_s for t_s in message.columns["t_s"] if t_s is not None]
        if not times:
            return
        self._done += len(times)
        if self._first_s is None:
            self._first_s = times[0]
        elapsed_s = times[-1] - self._first_s
        total, completed = (self._steps, self._done) if self._steps else (self._seconds, elapsed_s)
        self._progress.update(
            self._task, total=total, completed=completed, shown=f"{self._done} steps"
        )


def _toggle(text: str, toggles: Mapping[str, protocol.ToggleInfo]) -> tuple[str, str]:
    name, _, option = text.partition("=")
    toggle = _known("unknown toggle", name, toggles)
    options = [option.name for option in toggle.options]
    if not option:
        if len(options) != 2:
            raise Mistaken(f"--toggle {name}: name an option, one of {', '.join(options)}")
        option = options[1]
    return name, _known(f"toggle {name}: unknown option", option, dict.fromkeys(options, option))


def _known(what: str, name: str, allowed: Mapping[str, Any]) -> Any:
    if name not in allowed:
        raise Mistaken(f"{what} {name!r}; expected one of {', '.join(allowed)}")
    return allowed[name]


def _read(field: protocol.Field, text: str) -> Scalar:
    """The text as the field's kind."""
    try:
        if isinstance(field.default, bool):
            return {"true": True, "false": False}[text.lower()]
        return type(field.default)(text)
    except (ValueError, KeyError):
        kind = _KINDS[type(field.default)]
        raise Mistaken(f"--set {field.name}={text}: expected {kind}") from None


def _title(configuration: Configuration) -> str:
    return f"{configuration.family} {configuration.preset} {configuration.workload}"


def _positive_int(text: str) -> int:
    return int(_positive(text, int, "a whole number above 0"))


def _positive_float(text: str) -> float:
    return float(_positive(text, float, "a number above 0"))


def _positive(text: str, kind: type[int] | type[float], expected: str) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not {expected}")
    return value


COMMAND = Command(name="run", help=__doc__, arguments=_arguments, run=_run)
