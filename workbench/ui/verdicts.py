"""Paired comparisons as the window asks for them: what to compare, for how long, and why not."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject

from sessions.model import Configuration, PairedComparison
from workbench import floors, protocol

if TYPE_CHECKING:
    from workbench.ui.state import AppState

BUDGET_S = 20.0
MOST_MORE_S = 600.0  # that one click may ask for


class Verdicts(QObject):
    """Asks the runner for comparisons; what comes back is in the session's ``comparisons``."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._state = state
        self.budget_s = BUDGET_S  # seconds of alternating that a new comparison may take

    @property
    def newest(self) -> PairedComparison | None:
        """The last comparison of the session that is shown."""
        comparisons = self._state.session.comparisons
        return comparisons[-1] if comparisons else None

    @property
    def measuring(self) -> bool:
        """Whether the newest comparison is being measured now, and not a run after it."""
        newest, state = self.newest, self._state
        return (
            newest is not None
            and state.live
            and state.active
            and not newest.facts.get("final", False)
            and newest.facts["segments"][-1] == len(state.session.segments) - 1
        )

    def before(self) -> Configuration | None:
        """The configuration that ran before the one being edited: the last that differs from it."""
        now = self._state.configuration
        for segment in reversed(self._state.recorder.session.segments):
            if now is not None and segment.configuration != now:
                return segment.configuration
        return None

    def why_not_before(self) -> str:
        """Why nothing can be compared with the configuration before; empty where it can."""
        state = self._state
        if reason := self._why_not():
            return reason
        problems = state.availability.problems if state.availability is not None else []
        if problems:
            return problems[0]
        if self.before() is None:
            return "No other configuration has run yet: run one, then change a toggle."
        return ""

    def against_before(self) -> None:
        """Compare the configuration being edited with the one before."""
        state, base = self._state, self.before()
        if base is None or state.configuration is None or self.why_not_before():
            return
        state.perform(
            protocol.Compare(
                base=base,
                other=state.configuration,
                budget_s=self.budget_s,
                floor=self._floor(),
                seed=state.configuration.seed,
            )
        )

    def more_s(self) -> float:
        """How many more seconds the newest comparison should get."""
        newest = self.newest
        wanted = None if newest is None else newest.facts.get("more_s")
        if wanted is None:
            return self.budget_s
        return float(min(max(1, math.ceil(wanted)), MOST_MORE_S))

    def more_text(self) -> str:
        """What measuring on is called now."""
        return "" if self.why_not_more() else f"Measure {self.more_s():g} more seconds"

    def why_not_more(self) -> str:
        """Why the newest comparison cannot go on; empty where it can."""
        if self.newest is None:
            return "Nothing has been compared yet."
        if not self._state.live:
            return "This session is a file; only the live one can be measured on."
        return self._why_not()

    def measure_more(self) -> None:
        """Go on with the newest comparison; its pairs so far count."""
        newest = self.newest
        if newest is None or self.why_not_more():
            return
        segments = self._state.session.segments
        base, other = (segments[place].configuration for place in newest.facts["segments"])
        facts = newest.facts
        self._state.perform(
            protocol.Compare(
                base=base,
                other=other,
                budget_s=self.more_s(),
                region=facts.get("region", 0.01),
                floor=facts.get("floor", 0.0),
                order=facts.get("order", "random"),
                seed=facts.get("seed", 0) + len(newest.order),  # else the old order came again
                before=_blocks(newest),
                before_s=facts.get("seconds", 0.0),
            )
        )

    def _floor(self) -> float:
        catalogue = self._state.catalogue
        return 0.0 if catalogue is None else floors.floor_of(catalogue.device_title)

    def _why_not(self) -> str:
        state = self._state
        if state.replaying:
            return "This is a replay; open the window without --replay to measure."
        if self.measuring:
            return "Two configurations are being compared."
        if state.runner_state not in ("idle", "running", "paused"):
            return "The runner is not ready."
        return ""


def _blocks(comparison: PairedComparison) -> list[protocol.Block]:
    rows = zip(
        comparison.order,
        comparison.pairs,
        comparison.medians_ms,
        comparison.clocks_mhz,
        comparison.voids,
        strict=True,
    )
    return [
        protocol.Block(
            arm=arm,
            pair=pair,
            median_ms=median,
            clock_mhz=clock if math.isfinite(clock) else None,
            void=void,
        )
        for arm, pair, median, clock, void in rows
    ]
