"""Ctrl+C in the terminal that a window was started from closes it and ends Qt's loop."""

from __future__ import annotations

import signal
import socket

from PySide6.QtCore import QObject, QSocketNotifier, Signal
from PySide6.QtWidgets import QApplication, QWidget


class Interrupts(QObject):
    """Closes ``window`` on Ctrl+C, ``pressed`` first; until ``end``.

    Without it Python raises in whichever slot runs next, where Qt prints the traceback and goes on,
    or hears of the signal only once some slot runs.
    """

    pressed = Signal()

    def __init__(self, window: QWidget) -> None:
        super().__init__()
        self._window = window
        self._heard, self._told = socket.socketpair()
        for end in (self._heard, self._told):
            end.setblocking(False)
        self._notifier = QSocketNotifier(
            self._heard.fileno(), QSocketNotifier.Type.Read, parent=self
        )
        self._notifier.activated.connect(self._hear)
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is not signal.SIG_IGN:  # whoever started it wants no interruption
            signal.signal(signal.SIGINT, lambda *_: None)
        self._descriptor = signal.set_wakeup_fd(self._told.fileno(), warn_on_full_buffer=False)

    def end(self) -> None:
        """Let Ctrl+C do again what it did before."""
        self._notifier.setEnabled(False)
        signal.set_wakeup_fd(self._descriptor)
        signal.signal(signal.SIGINT, self._before)
        self._heard.close()
        self._told.close()

    def _hear(self) -> None:
        if signal.SIGINT in self._heard.recv(64):
            self.pressed.emit()
            self._window.close()
            QApplication.exit()  # a window that was never exposed is no last one to be closed
