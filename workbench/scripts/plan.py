"""A watched script as a plan of the headless run: one process, from its start to its end."""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType

from sessions.columns import row_count
from sessions.model import Session
from workbench import interrupts, protocol
from workbench.scripts.configuration import configuration_of, label_of
from workbench.scripts.launch import ScriptProcess

# ``-P``: a file in the working directory must not replace a module of ours or of Python's.
WATCHER = (sys.executable, "-P", "-m", "workbench.runner.script")
NOT_STARTED = 127  # the exit code of shells for a command that cannot be started
FIRST_STEP_S = 900.0  # from the start of a script whose time is limited to its first step


class ScriptPlan:
    """Runs the script once; ``steps`` and ``seconds`` end it earlier, if given.

    ``seconds`` count from its first step: a script that hangs or waits afterwards is ended, too.
    With ``seconds``, a script that makes no step in ``FIRST_STEP_S`` is ended, and has failed.

    ``exit_code`` is the script's. ``failure``: why it failed, if it did.
    """

    allowed_s = math.inf

    def __init__(
        self,
        argv: Sequence[str],
        chosen: Mapping[str, str],
        *,
        steps: int | None = None,
        seconds: float | None = None,
        aside: bool = False,
    ) -> None:
        self._argv = argv
        self._chosen = chosen
        self._steps = steps
        self._seconds = seconds
        self._aside = aside
        self._timer: threading.Timer | None = None  # ends the script
        self._has_stepped = False
        self._process: ScriptProcess | None = None
        self._session: Session | None = None
        self.exit_code = 0
        self.failure: protocol.Failure | None = None

    def begin(
        self, catalogue: protocol.Catalogue, session: Session
    ) -> Iterable[protocol.AnyMessage]:
        """Store the session, whose steps are counted."""
        self._session = session
        return ()

    def next(self, catalogue: protocol.Catalogue) -> protocol.Command | None:
        """Start the script; None after its end."""
        if self._process is not None or self.failure is not None:
            return None
        try:
            self._process = ScriptProcess(self._argv, self._chosen, aside=self._aside)
        except OSError as error:
            self.exit_code, self.failure = NOT_STARTED, not_started(self._argv, error)
            return None
        if self._seconds is not None:
            self._end_after(FIRST_STEP_S)
        return protocol.Script(
            configuration=configuration_of(self._argv, self._chosen),
            label=label_of(self._argv, self._chosen),
            folder=str(self._process.folder),
        )

    def on_message(self, message: protocol.AnyMessage) -> Iterable[protocol.AnyMessage]:
        """End the script once it has made enough steps; its seconds begin with the first one."""
        if isinstance(message, protocol.Steps):
            assert self._process is not None
            if self._steps is not None and self._step_count() >= self._steps:
                self._process.end()
            if self._seconds is not None and not self._has_stepped:
                self._end_after(self._seconds)
            self._has_stepped = True
        return ()

    def _end_after(self, seconds: float) -> None:
        """End the script after ``seconds`` from now, instead of when an earlier call said."""
        assert self._process is not None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self._process.end)
        self._timer.daemon = True
        self._timer.start()

    def pending_messages(self) -> Iterable[protocol.AnyMessage]:
        """Record nothing between two commands."""
        return ()

    def on_timeout(self, command: protocol.Command | None) -> bool:
        """Return False: a script may take as long as it likes."""
        return False

    def on_runner_lost(self) -> bool:
        """Return False: in another process a part of the run would be missing."""
        return False

    def finish(self, why: str = "") -> Iterable[protocol.AnyMessage]:
        """Wait for the script, which may still end in its own way after a signal."""
        process = self._process
        if process is not None:
            wait_for(process, is_interrupted=bool(why))
            if self._timer is not None:
                self._timer.cancel()
                self._timer.join()  # it may be ending processes that the script started
            self.exit_code = process.exit_code
            if not why:
                self.failure = failed(self.exit_code, self._step_count())
                if process.was_ended and not self._has_stepped:
                    self.failure = made_no_step()
            process.remove()
        return () if self.failure is None else (self.failure,)

    def _step_count(self) -> int:
        assert self._session is not None
        return sum(row_count(segment.steps) for segment in self._session.segments)


def wait_for(process: ScriptProcess, *, is_interrupted: bool) -> None:
    """Wait for the script to end; each further signal is a stronger demand.

    The first signal, which may have ended the run already, is passed on as it is, unless the
    terminal has sent it to the script as well.
    """
    stronger = [signal.SIGKILL, signal.SIGTERM]
    was_signalled = False

    def demand(number: int, frame: FrameType | None) -> None:
        nonlocal was_signalled
        interrupts.note(number, frame)
        if was_signalled:
            process.send(stronger.pop() if len(stronger) > 1 else stronger[0])
        else:
            process.forward(signal.Signals(number))
        was_signalled = True

    with interrupts.handled_by(demand, include_ignored=True):
        if is_interrupted and (number := interrupts.noted()) is not None:
            demand(number, None)
        while not process.wait(0.2):  # short, so that handlers run
            pass


def failed(exit_code: int, steps: int) -> protocol.Failure | None:
    """Return the failure of a script that ended with an exit code other than 0."""
    if exit_code == 0:
        return None
    names = {128 + number: f" ({number.name})" for number in signal.Signals}
    return protocol.Failure(
        kind=protocol.SCRIPT_FAILED,
        sentence=f"The script ended with exit code {exit_code}{names.get(exit_code, '')}.",
        fix="The script's own messages give the reason; "
        + ("the session has the earlier steps." if steps else "no steps were recorded."),
    )


def made_no_step() -> protocol.Failure:
    """Return the failure of a script that was ended because its first step did not come."""
    return protocol.Failure(
        kind=protocol.SCRIPT_FAILED,
        sentence=f"The script was ended: it made no step in {FIRST_STEP_S:g} s.",
        fix="Find out what the script waits for. `workbench run` without --seconds has no limit.",
    )


def not_started(argv: Sequence[str], error: OSError) -> protocol.Failure:
    """Return the failure of a command that is no program."""
    return protocol.Failure(
        kind=protocol.SCRIPT_FAILED,
        sentence=f"{argv[0]!r} cannot be started: {error.strerror}.",
        fix="Write the command as in a shell, for example `-- python train.py`.",
    )
