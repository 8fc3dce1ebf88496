"""Calls that are delayed and combined, so that a panel is drawn once for many changes."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QWidget

PERIOD_MS = 100  # between two calls while a measurement runs


class ThrottledCall(QTimer):
    """Delayed call of ``show``, at most once a period; signals connect to ``schedule``."""

    def __init__(self, show: Callable[[], None], panel: QWidget, period_ms: int = PERIOD_MS):
        super().__init__(panel, singleShot=True, interval=period_ms)
        self.timeout.connect(show)

    def schedule(self) -> None:
        """Show after the period; further calls until then change nothing."""
        if not self.isActive():
            self.start()
