"""The runner's session clock as its messages tell it, whatever the clocks of two hosts show."""

from __future__ import annotations

import math
import time

from workbench import protocol


class RunnerClock:
    """Seconds on the clock that a runner stamps its messages with, from their arrival alone.

    A message arrives after it was stamped, so that of all differences the least is nearest to the
    truth: it is late by the shortest way that any message had.
    """

    def __init__(self) -> None:
        self._least_s = math.inf  # between this process's monotonic clock and the runner's

    def hear(self, message: protocol.AnyMessage) -> None:
        """A message has arrived; a catalogue is another runner's first, with a clock of its own."""
        if isinstance(message, protocol.Catalogue):
            self._least_s = time.monotonic() - message.t_s
        elif message.t_s > 0:  # what the window's end says itself has no time
            self._least_s = min(self._least_s, time.monotonic() - message.t_s)

    def now(self) -> float:
        """Seconds since the runner's session clock began; 0 before anything was heard."""
        return time.monotonic() - self._least_s if math.isfinite(self._least_s) else 0.0
