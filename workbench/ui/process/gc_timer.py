"""Collection of Python's cyclic garbage in the window's thread only.

Python collects in whichever thread happens to allocate. In the thread that reads the runner, this
could destroy graphics items while the window's thread paints them. (pyqtgraph has the same remedy,
behind an import that takes most of a second.)
"""

from __future__ import annotations

import gc

from PySide6.QtCore import QObject, QTimer

PERIOD_MS = 1000


class GcTimer(QObject):
    """Timer that collects garbage instead of automatic collection, until ``stop``."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        gc.disable()
        self._timer = QTimer(self)
        self._timer.timeout.connect(self._collect)
        self._timer.start(PERIOD_MS)

    def stop(self) -> None:
        """Enable automatic collection again."""
        self._timer.stop()
        gc.enable()

    def _collect(self) -> None:
        """Collect the oldest generation over its threshold, and with it the younger ones."""
        passed = [
            generation
            for generation, (count, threshold) in enumerate(
                zip(gc.get_count(), gc.get_threshold(), strict=True)
            )
            if count > threshold
        ]
        if passed:
            gc.collect(passed[-1])
