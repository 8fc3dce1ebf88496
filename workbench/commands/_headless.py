"""Shared by the commands that drive a runner: progress, failures, saving, exit codes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from sessions.errors import SessionError
from sessions.model import Session
from sessions.numbers import counted
from sessions.plain_text import sentence
from sessions.storage import hdf5
from workbench import interrupts, protocol
from workbench.client import headless, journal
from workbench.client.headless import Outcome
from workbench.client.runner_process import NotStarted, Runner
from workbench.commands._command import (
    DONE,
    FAILED,
    INTERRUPTED,
    Failed,
    Mistaken,
    answer,
    print_status,
    report_skipped,
)


def query_runner(
    question: Callable[[protocol.Catalogue], protocol.Command] | None = None,
    expected: type[protocol.Message] = protocol.Catalogue,
) -> protocol.AnyMessage | None:
    """Start a runner, ask it one question and return its answer of the ``expected`` type.

    Without a question the answer is the catalogue. Return the runner's failure if it reports one
    instead, and None if it ends without either.
    """
    try:
        runner = Runner()
    except NotStarted as error:
        return error.failure
    try:
        for message in runner.messages():
            if isinstance(message, protocol.Catalogue) and question is not None:
                report_skipped(message.plugins)
            if isinstance(message, (expected, protocol.Failure)):
                return message
            if isinstance(message, protocol.Catalogue) and question is not None:
                runner.send(question(message))
    finally:
        runner.close()
    return None


class Bar:
    """A progress bar on a terminal's stderr that follows the runner's messages.

    Its fraction is the one that the runner reports, otherwise that of ``steps`` or ``seconds``.
    """

    def __init__(self, steps: int | None = None, seconds: float | None = None) -> None:
        self._steps, self._seconds = steps, seconds
        self._has_fraction = False
        self._steps_done = 0
        self._first_s: float | None = None
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:<28}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[shown]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("Starting the runner", total=None, shown="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # the terminal was closed
            self._progress.stop()

    def write(self, text: str) -> None:
        """Print a line for the person, above the bar."""
        if self._progress.disable:
            print_status(text)
        else:
            self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def watch(self, message: protocol.AnyMessage) -> None:
        """Show the progress or the warning of a message."""
        match message:
            case protocol.State():
                text = message.text or message.state.capitalize()
                self._progress.update(self._task, description=text)
            case protocol.Progress():
                text = f"{message.task.capitalize()}: {message.text}"
                self._progress.update(self._task, description=text)
                if message.fraction is not None:
                    self._has_fraction = True
                    self._progress.update(self._task, total=1.0, completed=message.fraction)
            case protocol.Failure() if message.kind == protocol.JOURNAL:
                self.write(message.sentence_with_fix)
            case protocol.Steps() if not self._has_fraction:
                self._advance(message)

    def _advance(self, message: protocol.Steps) -> None:
        times = [t_s for t_s in message.columns["t_s"] if t_s is not None]
        if not times:
            return
        self._steps_done += len(times)
        if self._first_s is None:
            self._first_s = times[0]
        elapsed_s = times[-1] - self._first_s
        total, completed = (
            (self._steps, self._steps_done) if self._steps else (self._seconds, elapsed_s)
        )
        self._progress.update(
            self._task, total=total, completed=completed, shown=counted(self._steps_done, "step")
        )


def drive(
    begin: headless.Chooser, steps: int | None = None, seconds: float | None = None
) -> Outcome:
    """Run the command that ``begin`` makes of the catalogue, with a progress bar."""
    with Bar(steps, seconds) as progress_bar:
        return headless.run(begin, watch=progress_bar.watch)


def settle(outcome: Outcome, output: Path | None) -> str | None:
    """Report failures, save the session if requested, and remove a journal that is not needed.

    Returns the path of the file that was written. Raises ``Mistaken`` if nothing could be run,
    ``Failed`` if the file could not be written. A second Ctrl+C does not prevent saving.
    """
    with interrupts.handled_by(interrupts.note, include_ignored=True):
        return _settle(outcome, output)


def _settle(outcome: Outcome, output: Path | None) -> str | None:
    session = outcome.session
    if outcome.mistake:
        journal.discard(outcome.journal)
        raise Mistaken(outcome.mistake)
    for text in warnings(session):
        if text == outcome.unjournaled:
            continue  # printed when it happened
        print_status(sentence(text))
    for failure in outcome.failures:
        print_status(failure.sentence_with_fix)
        if failure.kind in ("died", protocol.SCRIPT_FAILED) and failure.detail:
            print_status(f"Its last output:\n{failure.detail}")
        elif failure.detail and _is_log_elsewhere(failure):
            print_status(f"The log:\n{failure.detail.rstrip()}")
    if outcome.log_tail and any(failure.kind == protocol.RANKS for failure in outcome.failures):
        lines = "\n".join(outcome.log_tail)  # a rank that could not report left only its output
        print_status(f"The last output of the runner and its ranks:\n{lines}")
    saved = None
    if output is not None and session.segments:
        try:
            hdf5.save(session, output)
        except SessionError as error:
            raise Failed(f"{error} {_recovery_hint(outcome)}".strip()) from None
        saved = str(output)
    elif output is not None:
        print_status(f"Nothing was measured, so {output} was not written.")
    cut = any(failure.kind in ("died", protocol.SCRIPT_FAILED) for failure in outcome.failures)
    cut = cut or outcome.reason in ("died", "cancelled")
    if saved is None and session.segments and cut:
        print_status(_recovery_hint(outcome))
    else:
        journal.discard(outcome.journal)
    return saved


def _is_log_elsewhere(failure: protocol.Failure) -> bool:
    """Return True if the failure refers to a log that only the window shows."""
    return failure.kind == protocol.RANKS or "the log has" in failure.fix.lower()


def warnings(session: Session) -> list[str]:
    """Return the runner's warnings, such as ignored options of presets."""
    return [event.text for event in session.events if event.kind == "warning"]


def as_data(outcome: Outcome, saved: str | None) -> dict[str, Any]:
    """Return the beginning of every JSON answer: reason, file and failures."""
    return {
        "reason": outcome.reason,
        "file": saved,
        "failures": [msgspec.to_builtins(failure) for failure in outcome.failures],
        "warnings": warnings(outcome.session),
        "environment": outcome.session.environment,
    }


def answer_lines(lines: Sequence[str], saved: str | None) -> None:
    """Answer with the lines, if there are any, and the file in which the session is saved."""
    if lines:
        answer("\n".join(lines))
    if saved:
        answer(f"saved {saved}")


def exit_code(outcome: Outcome) -> int:
    """Return the exit code of the run.

    Numbers that are not finite, and a requested file that was not written, are failures.
    """
    failed = {failure.kind for failure in outcome.failures}
    if outcome.reason == "done" and failed & {"nan", "unwritten"}:
        return FAILED
    return {"done": DONE, "cancelled": INTERRUPTED}.get(outcome.reason, FAILED)


def _recovery_hint(outcome: Outcome) -> str:
    """Return a sentence that says how to recover the measurements."""
    if not outcome.unjournaled:
        return f"To save the measurements, run: workbench recover {outcome.journal}"
    if not outcome.journal.exists():
        return "The measurements are lost."
    return f"To save the first measurements, run: workbench recover {outcome.journal}"
