"""Phases of a run: how each step's time was spent, and when steps become comparable.

A step is steady if nothing was compiled or captured in it or shortly before, the allocator's
reserved memory did not change, and the GPU's clock changed by at most 2 % within the last second.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator

from sessions.model import Phase
from workbench.runner.instruments import autotuning
from workbench.runner.instruments.clocks import moved

QUIET_STEPS = 3  # steps without an event before steps count as steady
QUIET_S = 0.1  # and this long
CLOCK_TOLERANCE = 0.02
CLOCK_SAMPLES = 20  # samples of one second of telemetry

Changed = Callable[[Phase], None]


class PhaseTracker:
    """Follows one runner's phases; ``changed`` is called immediately at each change."""

    def __init__(self, changed: Changed) -> None:
        self._changed = changed
        self.phase = Phase.WARM_UP
        self.events = 0  # compilations and captures so far: their steps are not steady
        self.last_event = Phase.COMPILE  # the phase of the latest event
        self._handled_events = 0
        self._quiet_steps = 0
        self._quiet_since_ns = 0
        self._reserved = float("nan")
        self._clocks: deque[float] = deque(maxlen=CLOCK_SAMPLES)
        self._clocks_lock = threading.Lock()  # telemetry adds clocks from another thread
        self._watches_compiles = False

    def watch_compiles(self) -> None:
        """Let torch report compilation and tuning; for backward graphs, autograd's threads do."""
        if self._watches_compiles:
            return
        self._watches_compiles = True
        from torch._dynamo.callback import callback_handler  # seconds: only where one compiles

        open_spans: list[contextlib.AbstractContextManager[None]] = []

        def started(*_: object) -> None:
            open_spans.append(self.during(Phase.COMPILE))
            open_spans[-1].__enter__()

        def ended(*_: object) -> None:
            if open_spans:
                open_spans.pop().__exit__(None, None, None)

        callback_handler.register_start_callback(started)
        callback_handler.register_end_callback(ended)
        from torch._dynamo import utils

        if logger := getattr(utils, "ChromiumEventLogger", None):
            autotuning.watch(logger, lambda: self.during(Phase.AUTOTUNE))

    @contextlib.contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Mark everything inside as ``phase``; a step with an event is not steady.

        If events are nested, the step has the phase of the outer event: tuning is a part of
        compiling.
        """
        before = self.phase
        self.events += 1
        self.last_event = phase
        self._enter(phase)
        try:
            yield
        finally:
            if Phase.BUILD < before < Phase.WARM_UP:
                self.last_event = before
            self._enter(before if before < Phase.WARM_UP else Phase.WARM_UP)

    def check(self) -> None:
        """Begin the phase in which results are compared with a reference; no step runs."""
        self._enter(Phase.CHECK)

    def restart(self) -> None:
        """Begin a new segment: steps warm up again."""
        self._handled_events = self.events
        with self._clocks_lock:
            self._clocks.clear()  # under a power limit every configuration has its own clock
        self._unsettle()
        self._enter(Phase.WARM_UP)

    def step_phase(self, now_ns: int) -> Phase:
        """Return the phase of the step that has just been called."""
        if self._handled_events != self.events:
            self._handled_events = self.events
            self._unsettle()
            self._enter(Phase.WARM_UP)
            return self.last_event
        if self.phase is Phase.STEADY:
            return Phase.STEADY
        if self._quiet_steps == 0:
            self._quiet_since_ns = now_ns
        self._quiet_steps += 1
        quiet_s = (now_ns - self._quiet_since_ns) * 1e-9
        if self._quiet_steps > QUIET_STEPS and quiet_s > QUIET_S:
            self._enter(Phase.STEADY)
        return Phase.WARM_UP

    def memory_reserved(self, reserved: float) -> None:
        """Record the allocator's reserved bytes; after a change, steps are not steady."""
        if reserved != self._reserved and self._reserved == self._reserved:
            self._restart_warm_up()
        self._reserved = reserved

    def clock_mhz(self, clock: float) -> None:
        """Record the SM clock; after a change, steps are not steady."""
        with self._clocks_lock:
            self._clocks.append(clock)
            recent = list(self._clocks)
        if moved(recent, CLOCK_TOLERANCE):
            self._restart_warm_up()

    def _restart_warm_up(self) -> None:
        self._unsettle()
        if self.phase is Phase.STEADY:
            self._enter(Phase.WARM_UP)

    def _unsettle(self) -> None:
        self._quiet_steps = 0

    def _enter(self, phase: Phase) -> None:
        if phase is not self.phase:
            self.phase = phase
            self._changed(phase)
