"""The check of a run's segment against a reference: its time, and what is reported.

A configuration is checked once; the result is reported for each of its segments. If a segment is
checked while it runs, the run pauses. A command of the user comes first: the check is abandoned and
repeated later.
"""

from __future__ import annotations

import time

from sessions import numerics as checked
from sessions.model import Numerics
from workbench import protocol
from workbench.runner.context import RunnerContext
from workbench.runner.instruments.memory import free_memory
from workbench.runner.interfaces import Situation
from workbench.runner.numerics import comparison
from workbench.runner.variants.variant import Variant

STEADY_STEPS = 3  # an option shows its effect within these steps
SEEN_S = 1.0  # duration of steady steps before the pause for the check
EARLY = f"not checked: the segment ended before it had been steady for {SEEN_S:g} s"


class SegmentCheck:
    """Checks one run's segments, one after another; ``when`` as in ``protocol.Start.check``."""

    def __init__(self, context: RunnerContext, when: str) -> None:
        self._context = context
        self._when = when
        self._is_reported = False
        self._steady_ns = 0  # since when the segment has been steady; 0: it has not

    def begin(self, situation: Situation) -> None:
        """Begin a segment; what is known of its configuration is reported at once."""
        self._is_reported, self._steady_ns = False, 0
        known = self._context.variants.numbers_of(situation)
        if known is not None and self._when != "never":
            self._send_numerics(known)

    def due(self, settling: int, steady: int) -> bool:
        """Return True if the check should run now.

        ``settling`` is how many steps the model needs to adapt. ``steady`` counts steady steps.
        """
        if self._is_reported or self._when != "steady":
            return False
        if steady < max(STEADY_STEPS, settling):
            return False
        now_ns = time.perf_counter_ns()
        self._steady_ns = self._steady_ns or now_ns
        return now_ns - self._steady_ns >= SEEN_S * 1e9

    def look(self, variant: Variant) -> None:
        """Compare the variant, which is not entered, with its reference, unless a command comes."""
        began = time.perf_counter()
        try:
            checked_numerics = self._check_results(variant, self._stop_for_command)
        except comparison.PutOff:
            return
        finally:
            free_memory()
        seconds = time.perf_counter() - began
        when = f"checked in {seconds:.1f} s, between two steps"
        if checked_numerics.ok is False:
            self._context.note(
                "warning", f"the numbers are WRONG ({when}): {checked_numerics.text}"
            )
        else:
            self._context.note(
                "info", f"the numbers are {checked.MARKS[checked_numerics.ok]} ({when})"
            )

    def end(self, variant: Variant, cancelled: bool) -> None:
        """End the segment; ``cancelled``: the client that requested it is gone."""
        if self._is_reported:
            return
        if self._when == "steady":
            self._send_numerics(Numerics(reference="", ok=None, text=EARLY))
        elif self._when == "last" and not cancelled and not self._context.wire.cancelled.is_set():
            self._check_results(variant, self._context.check_cancelled)

    def _check_results(self, variant: Variant, between: comparison.Between) -> Numerics:
        context = self._context
        context.watchdog.active = False  # nothing steps meanwhile, which would count as a hang
        context.state("running", "Checking results")
        context.phases.check()
        context.variants.make_room(comparison.bytes_wanted(variant), variant)
        numerics = comparison.check(variant, variant.situation, between)
        context.variants.keep_numbers(variant.situation, numerics)
        self._send_numerics(numerics)
        return numerics

    def _stop_for_command(self) -> None:
        if self._context.wire.waiting:
            raise comparison.PutOff

    def _send_numerics(self, numerics: Numerics) -> None:
        self._is_reported = True
        facts = protocol.Facts(segment=self._context.segments - 1, ledger=checked.facts(numerics))
        self._context.wire.send(facts)
