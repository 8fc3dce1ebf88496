"""Watchdog: reports a step that does not end, and how long building and compiling take."""

from __future__ import annotations

import os
import threading
import time

from sessions.model import Phase
from workbench import protocol
from workbench.runner.instruments.timing import now_ns
from workbench.runner.wire import Wire

HANG_S = float(os.environ.get("WORKBENCH_HANG_S", "30"))
TIMES_LONGER = 20  # than the step before, before a step counts as hanging
PERIOD_S = 0.5


class Watchdog:
    """A thread that watches ``beat_ns`` while ``active``; the engine sets both, without a lock."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.cause = ""  # why a step of the current variant may hang, as a sentence
        self.active = False
        self.beat_ns = now_ns()  # when the current step or phase began
        self.phase = Phase.WARM_UP
        self._reported_ns = 0

    def start(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def begin(self, phase: Phase) -> None:
        """Begin a phase."""
        self.phase = phase
        self.beat_ns = now_ns()

    def _watch(self) -> None:
        watched_ns, step_s, before_s = 0, 0.0, 0.0
        while True:
            time.sleep(PERIOD_S)
            if not self.active:
                continue
            beat_ns = self.beat_ns
            if beat_ns != watched_ns:
                # The step before, not the longest so far: a first step may take seconds to import
                # compilers, and a hang after it must not wait for twenty times that.
                watched_ns, before_s = beat_ns, step_s
            elapsed_s = (now_ns() - beat_ns) * 1e-9
            building = self.phase < Phase.WARM_UP
            step_s = 0.0 if building else elapsed_s
            if building and elapsed_s >= 1:
                text = f"{elapsed_s:.0f} s so far"
                self._wire.send(protocol.Progress(task=self.phase.title, text=text))
            elif step_s > max(HANG_S, TIMES_LONGER * before_s) and self._reported_ns != beat_ns:
                self._reported_ns = beat_ns
                self._report(elapsed_s)

    def _report(self, elapsed_s: float) -> None:
        sentence = f"No step has ended for {elapsed_s:.0f} s."
        self._wire.send(
            protocol.Failure(
                kind="hang",
                sentence=f"{sentence} {self.cause}".rstrip(),
                fix="Cancel the run. If the runner does not answer, it is terminated, and you can "
                "start a new one. Everything measured so far is kept.",
            )
        )
