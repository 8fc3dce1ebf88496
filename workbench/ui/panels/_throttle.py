"""Draw a panel a little later, once for all that changes until then."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QWidget

PERIOD_MS = 100  # between two looks while something is measured


class Soon(QTimer):
    """Connect what changes often to ``ask``: ``show`` is called once a period at the most."""

    def __init__(self, show: Callable[[], None], panel: QWidget, period_ms: int = PERIOD_MS):
        super().__init__(panel, singleShot=True, interval=period_ms)
        self.timeout.connect(show)

    def ask(self) -> None:
        """Show after the period; asking again until then changes nothing."""
        if not self.isActive():
            self.start()
