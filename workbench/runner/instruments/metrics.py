"""Live metrics that a model measures itself, read a few times a second between two steps.

No step waits for a reading. On the GPU it is a copy into pinned memory, queued behind the steps so
far and sent once its event has passed; on the CPU the numbers are there already.
"""

from __future__ import annotations

import torch

from models import Model
from workbench import protocol
from workbench.runner.instruments.timing import now_ns
from workbench.runner.wire import Wire

PERIOD_NS = 250_000_000
SHARE = 0.005  # share of the host's time: slow readings are taken less often


class MetricReader:
    """Reads the metrics of one segment's model; ``poll`` is called between steps."""

    def __init__(self, wire: Wire, segment: int, model: Model) -> None:
        self._wire, self._segment = wire, segment
        self._sources = model.metrics()
        on_gpu = any(source.is_cuda for source in self._sources.values())
        self._copies = {
            name: torch.empty(source.shape, dtype=torch.float32, pin_memory=on_gpu)
            for name, source in self._sources.items()
        }
        self._event = torch.cuda.Event() if on_gpu else None
        self._taken_s: float | None = None  # when the reading was taken that is not sent yet
        self._taken_step = -1  # number of steps before the last reading
        self._due_ns = 0

    def poll(self, steps: int) -> None:
        """Start a reading if one is due, and send the last one if it has arrived.

        ``steps`` counts those that ran so far.
        """
        began_ns = now_ns()
        if not self._sources or (self._taken_s is None and began_ns < self._due_ns):
            return
        if self._taken_s is None:
            self._start_copy(steps)
        if self._event is not None and not self._event.query():
            return
        self._send()
        ended_ns = now_ns()
        self._due_ns = ended_ns + max(PERIOD_NS, int((ended_ns - began_ns) / SHARE))

    def finish(self, steps: int) -> None:
        """Send the metrics at the segment's end, unless already read; waits for its last step."""
        if not self._sources or (self._taken_s is None and self._taken_step == steps):
            return
        self._start_copy(steps)
        if self._event is not None:
            self._event.synchronize()
        self._send()

    def _start_copy(self, steps: int) -> None:
        for name, source in self._sources.items():
            self._copies[name].copy_(source, non_blocking=True)
        if self._event is not None:
            self._event.record()
        self._taken_s, self._taken_step = self._wire.seconds(), steps

    def _send(self) -> None:
        assert self._taken_s is not None
        values = {name: copy.tolist() for name, copy in self._copies.items()}
        self._wire.send(protocol.Metrics(t_s=self._taken_s, segment=self._segment, values=values))
        self._taken_s = None
