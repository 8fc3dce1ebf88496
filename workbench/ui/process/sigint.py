"""Ctrl+C, SIGTERM and SIGHUP close the window and end Qt's loop."""

from __future__ import annotations

import contextlib
import signal
import socket

from PySide6.QtCore import QObject, QSocketNotifier, QTimer, Signal
from PySide6.QtWidgets import QApplication, QWidget

from workbench import interrupts


class Interrupts(QObject):
    """Watch for signals, until ``end``: a signal calls ``pressed`` and closes ``window``.

    Qt's loop does not run Python code, so a handler in Python alone would only be called when a
    slot runs.
    """

    pressed = Signal()

    def __init__(self, window: QWidget) -> None:
        super().__init__()
        self._window = window
        self._receiver, self._sender = socket.socketpair()
        for end in (self._receiver, self._sender):
            end.setblocking(False)
        self._notifier = QSocketNotifier(
            self._receiver.fileno(), QSocketNotifier.Type.Read, parent=self
        )
        self._notifier.activated.connect(self._receive)
        self._descriptor = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        self._handling = contextlib.ExitStack()
        self._handling.enter_context(interrupts.handled_by(interrupts.note))
        if interrupts.noted() is not None:  # while the window was made
            QTimer.singleShot(0, self, self._close)

    def end(self) -> None:
        """Restore the earlier handlers of the signals."""
        self._notifier.setEnabled(False)
        signal.set_wakeup_fd(self._descriptor)
        self._handling.close()
        self._receiver.close()
        self._sender.close()

    def _receive(self) -> None:
        if interrupts.SIGNALS.keys() & set(self._receiver.recv(64)):
            self._close()

    def _close(self) -> None:
        self.pressed.emit()
        self._window.close()
        QApplication.exit()  # a window that was never exposed is no last one to be closed
