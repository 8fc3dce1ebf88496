"""The runner's session clock, derived from its messages; the clocks of two hosts may differ."""

from __future__ import annotations

import math
import time

from workbench import protocol


class RunnerClock:
    """Clock of the runner's timestamps, estimated from the arrival of its messages.

    A message arrives later than its timestamp. The least difference so far is nearest to the true
    offset: it is late only by the shortest delay of any message.
    """

    def __init__(self) -> None:
        self._least_s = math.inf  # between this process's monotonic clock and the runner's

    def hear(self, message: protocol.AnyMessage) -> None:
        """Take a message's timestamp as it arrives; a catalogue starts another clock."""
        if isinstance(message, protocol.Catalogue):
            self._least_s = time.monotonic() - message.t_s
        elif message.t_s > 0:  # messages of the window itself have no timestamp
            self._least_s = min(self._least_s, time.monotonic() - message.t_s)

    def now(self) -> float:
        """Return the seconds since the runner's session clock began; 0 before its first message."""
        return time.monotonic() - self._least_s if math.isfinite(self._least_s) else 0.0
