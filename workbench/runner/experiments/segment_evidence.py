"""Evidence of a run's segment: when it is collected, and when again.

Heads that adapt may not yet have changed anything when a segment is steady. So their choices are
read again, each time after twice as many steps, and at the end of the segment. Reading waits for
the device. New evidence is collected only if a choice has changed, or may be final.
"""

from __future__ import annotations

from collections.abc import Callable

from sessions.model import Evidence
from workbench.runner.experiments.segment_check import STEADY_STEPS
from workbench.runner.toggles._adapting import choices
from workbench.runner.variants.variant import Variant


class SegmentEvidence:
    """Evidence of one segment after another; ``send`` is called with it."""

    def __init__(self, send: Callable[[list[Evidence]], None]) -> None:
        self._send = send
        self.begin()

    def begin(self) -> None:
        """Start a segment without sent evidence."""
        self._due_steps = STEADY_STEPS
        self._shown: object = None  # choices and whether they can be final, as of the last message

    def look(self, variant: Variant, steady: int) -> None:
        """Send evidence if it is due after so many steady steps."""
        if steady >= self._due_steps:
            self._due_steps = 2 * steady
            self.show(variant)

    def show(self, variant: Variant) -> None:
        """Send evidence unless the segment's last message is still correct."""
        state = (choices(variant.model), variant.steps_to_settle() == 0)
        if state != self._shown:
            self._shown = state
            if variant.model.adapted():
                variant.evidence = None
            self._send(variant.find_evidence())
