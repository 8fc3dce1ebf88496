"""The window's tie to its runner: messages in batches at most 60 times a second, and a watch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from PySide6.QtCore import QObject, QTimer, Signal, Slot

from workbench import protocol
from workbench.client.journal import Journal
from workbench.ui.connection.stream_reader import Client, StreamReader

FRAME_MS = 16
DRAIN_BUDGET_S = 0.008  # half a frame
ANSWER_S = 20.0  # a runner that was asked and says nothing for so long does not answer
START_S = 180.0  # importing torch from a cold disk


class RunnerLink(QObject):
    """Link to the current runner; a replaced runner ends in the background."""

    arrived = Signal()  # messages wait in ``drain``
    silent = Signal(float)  # asked, and no answer for this many seconds

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._reader: StreamReader | None = None
        self._retired: list[StreamReader] = []
        self._asked = 0.0  # monotonic time of a command that is to be answered, 0 when none is
        self._frame = QTimer(self)
        self._frame.setSingleShot(True)
        self._frame.timeout.connect(self.arrived)
        self._watch = QTimer(self)
        self._watch.timeout.connect(self._check_answer)

    @property
    def open(self) -> bool:
        """True if there is a runner to send to."""
        return self._reader is not None

    def start(self, launch: Callable[[], Client]) -> None:
        """Launch a runner, instead of the present one if there is one."""
        self.retire()
        self._reader = StreamReader(launch, self)
        self._reader.arrived.connect(self._schedule)
        self._reader.start()
        self._asked = time.monotonic()
        self._watch.start(1000)

    def journal_to(self, journal: Journal) -> bool:
        """Write the runner's lines to another journal; return False if there is no runner."""
        return self._reader is not None and self._reader.journal_to(journal)

    def send(self, command: protocol.Command) -> None:
        """Send one command; messages are expected after it."""
        if self._reader is not None:
            self._asked = time.monotonic()
            self._reader.send(command)

    def cancel(self) -> None:
        """End the run, by force if necessary."""
        if self._reader is not None:
            self._reader.cancel()

    def drain(self) -> Iterator[protocol.AnyMessage]:
        """Yield arrived messages for half a frame; ``arrived`` is emitted again for the rest."""
        reader = self._reader
        deadline = time.monotonic() + DRAIN_BUDGET_S
        while reader is not None and reader is self._reader:
            message = reader.next_message()
            if message is None:
                return
            yield message
            if time.monotonic() > deadline:
                self._schedule()
                return

    def retire(self) -> None:
        """Let the present runner end in the background; its messages are ignored."""
        self._watch.stop()
        self._frame.stop()
        if self._reader is not None:
            self._reader.arrived.disconnect(self._schedule)
            self._reader.retire()
            self._retired.append(self._reader)
            self._reader = None

    def close(self) -> None:
        """End the runner and its thread; returns when they are gone."""
        self.retire()
        for reader in self._retired:
            reader.close()
        self._retired.clear()

    @Slot()  # type: ignore[untyped-decorator]  # called from the reader's thread, through Qt
    def _schedule(self) -> None:
        if not self._frame.isActive():
            self._frame.start(FRAME_MS)

    def _check_answer(self) -> None:
        if self._reader is None or not self._asked:
            return
        limit_s = ANSWER_S if self._reader.last_heard else START_S
        if self._reader.last_heard > self._asked:
            self._asked = 0.0
        elif time.monotonic() - self._asked > limit_s:
            self._asked = 0.0
            self.silent.emit(limit_s)
