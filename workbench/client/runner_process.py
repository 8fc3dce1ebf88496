"""The window's end of the wire: owns the runner's process, without Qt, for window and CLI alike."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from sessions.numbers import counted
from workbench import descendants, protocol
from workbench.client import runner_command, runner_errors
from workbench.client.journal import Journal
from workbench.client.throttle import Throttle, bounded_lines

GRACE_S = 3.0  # from cancel to terminate, and from terminate to kill
LOG_LINES = 200
FAILURES_PER_PERIOD = 50  # an answer to a command is a failure too, and must not be left out
LONGEST_LOG_LINE = 1 << 16  # bytes
PRINTED_LINES = 200  # printed lines that are stored before the first message

Log = Callable[[str], None]
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has none


class NotStarted(OSError):  # noqa: N818 - says what happened
    """The runner's command could not be started; ``failure`` says so to a person."""

    def __init__(self, failure: protocol.Failure) -> None:
        super().__init__(failure.sentence)
        self.failure = failure


class Runner:
    """A runner process and its two pipes: of ``command``, or else of the requested one.

    Where that is ssh, the process here is ssh, and the runner itself ends when its input does.
    Raises ``NotStarted``.

    ``messages()`` is read by one thread; ``send``, ``cancel`` and ``close`` may be called from any.
    From the first message on, every line is appended to ``journal`` before it is taken.
    """

    def __init__(
        self,
        journal: Journal | None = None,
        command: Sequence[str] | None = None,
        log: Log | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.journal = journal
        self.command = tuple(runner_command.command() if command is None else command)
        self.log_tail: deque[str] = deque(maxlen=LOG_LINES)
        self._log = log
        self._closing = False
        self._cancelled_by: str | None = None
        self._escalation: threading.Timer | None = None
        self._send_lock = threading.Lock()
        self._mark = uuid.uuid4().hex
        # A session of its own: compile workers and all die together when the group is killed.
        try:
            self.process = subprocess.Popen(
                list(self.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, **(environment or {}), descendants.VARIABLE: self._mark},
            )
        except OSError as error:
            raise NotStarted(runner_errors.not_started(self.command, error)) from error
        self._log_thread = threading.Thread(target=self._read_log, name="runner-log", daemon=True)
        self._log_thread.start()

    @property
    def alive(self) -> bool:
        """Return True if the process still runs."""
        return self.process.poll() is None

    def send(self, command: protocol.Command) -> bool:
        """Send one command; False when the runner is gone (``messages`` then says why)."""
        assert self.process.stdin is not None
        with self._send_lock:
            try:
                self.process.stdin.write(protocol.encode(command))
                self.process.stdin.flush()
            except (OSError, ValueError):
                return False
        return True

    def messages(self) -> Iterator[protocol.AnyMessage]:
        """Yield every message until the runner ends; the last is a Failure if it ended unasked."""
        assert self.process.stdout is not None
        printed: list[str] = []  # before the first message
        spoken = False
        unreadable, failures = Throttle(), Throttle(FAILURES_PER_PERIOD)
        for line in bounded_lines(self.process.stdout):
            if count := unreadable.due() + failures.due():
                yield _left_out(count)
            try:
                message = protocol.decode_message(line)
            except protocol.WireError as error:
                if not spoken and (failure := self._unintelligible(line, printed)):
                    yield from self._give_up(failure)
                    return
                if not spoken:
                    continue
                if not line.endswith(b"\n"):
                    self._keep(line)
                    break  # cut short by the runner's end, which its failure reports
                if unreadable.passes():
                    yield protocol.Failure(
                        kind="wire",
                        sentence="The runner sent a line that is not a message; it was left out.",
                        fix="If this repeats, start a new runner.",
                        detail=str(error),
                    )
                continue
            if isinstance(message, protocol.Catalogue) and message.version != protocol.VERSION:
                yield from self._give_up(runner_errors.other_version(self.command, message.version))
                return
            self._keep(line)
            if isinstance(message, protocol.State) and message.state == "idle":
                self._disarm()
            if isinstance(message, protocol.Failure) and message.fatal:
                self._closing = True  # it has said itself why it ends
            elif isinstance(message, protocol.Failure) and not failures.passes():
                continue
            yield message
            if self.journal is not None and (complaint := self.journal.complaint()):
                yield complaint
            if printed and not spoken:
                yield runner_errors.banner(self.command, printed)
            spoken = True
        if count := unreadable.due(at_end=True) + failures.due(at_end=True):
            yield _left_out(count)
        code = self.process.wait()
        self._disarm()
        descendants.kill_marked(self._mark)
        self._log_thread.join(timeout=1.0)
        if self._closing:
            return
        if spoken or self._cancelled_by or self.command == runner_command.HERE:
            yield runner_errors.ended(code, self._cancelled_by, self.log_tail)
        else:
            yield runner_errors.never_spoke(self.command, code, printed, self.log_tail)

    @property
    def ended_by_force(self) -> bool:
        """Return True if it did not hear Cancel."""
        return self._cancelled_by is not None

    def cancel(self, within_s: float | None = None) -> None:
        """Ask the run to end; a runner that does not in that time is terminated, then killed.

        ``within_s``: ``GRACE_S`` where not given.
        """
        self.send(protocol.Cancel())
        if self._escalation is None:
            self._arm(self.terminate, within_s)

    def terminate(self) -> None:
        """End the run by force, and kill a runner that does not end even so."""
        self._disarm()
        self._cancelled_by = "terminated"
        self._signal(signal.SIGTERM)
        self._arm(self._kill)

    def abandon(self) -> None:
        """End a runner that has no command yet, silently and without waiting."""
        self._closing = True
        self._signal(signal.SIGTERM)
        self._arm(self._kill)

    def close(self) -> None:
        """End the runner: ask, then terminate, then kill. Returns when it is gone."""
        self._closing = True
        self._disarm()
        self.send(protocol.Quit())
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        for signal_number in (None, signal.SIGTERM, KILL):
            if signal_number is not None:
                self._signal(signal_number)
            try:
                self.process.wait(timeout=GRACE_S)
                break
            except subprocess.TimeoutExpired:
                continue
        self._signal(KILL)  # workers that outlived their parent
        descendants.kill_marked(self._mark)
        self._log_thread.join(timeout=GRACE_S)  # the pipe has ended with the last of them

    def _keep(self, line: bytes) -> None:
        if self.journal is not None:
            self.journal.append(line)

    def _unintelligible(self, line: bytes, printed: list[str]) -> protocol.Failure | None:
        """Add a line before the first message to ``printed``; why to wait for none, if so."""
        version = protocol.version_of(line)
        if version is not None and version != protocol.VERSION:
            return runner_errors.other_version(self.command, version)
        printed.append(line[: runner_errors.SHOWN + 1].decode("utf-8", "replace").rstrip())
        if len(printed) < PRINTED_LINES:
            return None
        return runner_errors.no_runner(self.command, printed, list(self.log_tail))

    def _give_up(self, failure: protocol.Failure) -> Iterator[protocol.AnyMessage]:
        self._closing = True
        yield failure
        self.close()

    def _arm(self, action: Callable[[], None], within_s: float | None = None) -> None:
        self._escalation = threading.Timer(GRACE_S if within_s is None else within_s, action)
        self._escalation.daemon = True
        self._escalation.start()

    def _disarm(self) -> None:
        if self._escalation is not None:
            self._escalation.cancel()
            self._escalation = None

    def _kill(self) -> None:
        self._cancelled_by = "killed"
        self._signal(KILL)
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()  # this ends a runner behind ssh, which signals do not reach

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, number)
            else:  # Windows has no groups of processes
                self.process.kill()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in bounded_lines(self.process.stderr, LONGEST_LOG_LINE):
            text = line.decode("utf-8", "replace").rstrip()
            self.log_tail.append(text)
            if self._log is not None:
                self._log(text)


def _left_out(count: int) -> protocol.Failure:
    """Return the report of failures and unreadable lines that came too fast."""
    return protocol.Failure(
        kind="wire",
        sentence=f"{counted(count, 'more failure')} or unreadable lines of the runner came "
        "within a second; they were left out.",
        fix="If this repeats, start a new runner.",
    )
