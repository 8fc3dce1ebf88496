"""Model FLOPs utilization of the newest steps, as a number beside the live plots."""

from __future__ import annotations

import math
import time

import numpy as np
from PySide6.QtWidgets import QLabel, QWidget

from sessions.ceilings import ceiling_words, utilization
from sessions.model import Segment
from workbench.theming import fonts
from workbench.ui.state.session import SessionModel

PERIOD_S = 0.25  # no person reads a number that changes faster
RECENT = 50  # steps


class Utilization(QLabel):
    """Label such as "MFU 42 %", empty if unknown; its tool tip names the ceiling."""

    def __init__(self, session: SessionModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self._shown_at = -math.inf
        self._shown: Segment | None = None
        self.setFont(fonts.numbers())

    def refresh(self) -> None:
        """Bring it up to date; cheap, and no more often than the user can read."""
        segments = self._session.shown.segments
        newest = segments[-1] if segments else None
        now = time.monotonic()
        if newest is self._shown and now - self._shown_at < PERIOD_S:
            return
        self._shown, self._shown_at = newest, now
        share = math.nan if newest is None else utilization(newest, recent_ms(newest))
        self.setText(f"MFU {100 * share:.3g} %" if math.isfinite(share) else "")
        text = "" if newest is None else ceiling_words(newest)
        self.setToolTip(f"Model FLOPs utilization of the newest steps: {text}")


def recent_ms(segment: Segment) -> float:
    """Median milliseconds of the newest steps; NaN where there are none."""
    for name in ("gpu_ms", "wall_ms"):
        times = np.asarray(segment.steps[name][-RECENT:], np.float64)
        if np.isfinite(times).any():
            return float(np.nanmedian(times))
    return math.nan
