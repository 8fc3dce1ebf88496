"""Paired comparisons as the window asks for them: what to compare, for how long, and why not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from sessions.model import Configuration, PairedComparison
from sessions.verdicts.background import is_background, newest_requested
from sessions.verdicts.multiple_comparisons import side_by_side
from workbench import calibration, protocol
from workbench.ui.controllers import config_edit, pending_changes

if TYPE_CHECKING:
    from workbench.ui.settings import Settings
    from workbench.ui.state import AppState

BUDGET_S = 20.0
CALIBRATION_S = 60.0
MOST_MORE_S = 600.0  # that one click may ask for


@dataclass
class _Asked:
    """A comparison that was asked for."""

    goes_on: Configuration | None  # what ran, and runs on when it is over
    ends: int  # of runs until it is over: a run in progress ends before it begins
    ends_early: bool = False
    after: int | None = None  # of a calibration: how many comparisons there were before it


class Verdicts(QObject):
    """Asks the runner for comparisons; what comes back is in the session's ``comparisons``."""

    pairChosen = Signal()  # a table's row is being compared: the verdict wants to be seen

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._state = state
        self.budget_s = BUDGET_S  # seconds of alternating that a new comparison may take
        self.resumes = False  # an interrupted run was told to go on and does not yet
        self.build_count = 0  # as in ``protocol.Compare``
        self.pairing_share = (
            protocol.PAIRING_SHARE
        )  # of the time of a run, as in ``protocol.Start``
        self._settings: Settings | None = None
        self._baseline = 0  # the segment that the runner's baseline was taken from
        self._known: list[calibration.Calibration] = []  # of the runner's machine
        self._asked: _Asked | None = None
        state.catalogueChanged.connect(self._read_floor)
        state.heard.connect(self._hear)
        state.stateChanged.connect(self._forget)
        state.segmentsChanged.connect(self._follow_baseline)

    def keep_in(self, settings: Settings) -> None:
        """Remember how verdicts are measured there, and take what is remembered."""
        self._settings = settings
        self.build_count, self.pairing_share = settings.build_count, settings.pairing_share

    def set_build_count(self, count: int) -> None:
        """Build both arms of verdicts to come so often; 0: several times if that is cheap."""
        self.build_count = count
        if self._settings is not None:
            self._settings.build_count = count

    def set_pairing_share(self, share: float) -> None:
        """Let runs to come return to their baseline for this part of the time; 0: never."""
        self.pairing_share = share
        if self._settings is not None:
            self._settings.pairing_share = share

    def respected(self, command: protocol.Start) -> protocol.Start:
        """Return the run with its background pairing, and the floor of its ratios."""
        state, catalogue = self._state, self._state.catalogue
        command.pairing_share = self.pairing_share
        segments = state.recorder.session.segments
        if state.live and state.baseline < len(segments):
            command.baseline = segments[state.baseline].configuration
        return command if catalogue is None else calibration.respected(catalogue, command)

    def _follow_baseline(self) -> None:
        """Tell the runner which segment ratios refer to, if a person chose another one."""
        state, segments = self._state, self._state.session.segments
        if state.baseline == self._baseline:
            return
        self._baseline = state.baseline
        if state.live and state.active and state.baseline < len(segments):
            chosen = segments[state.baseline].configuration
            state.send(protocol.Baseline(configuration=chosen))

    @property
    def all(self) -> list[PairedComparison]:
        """The comparisons of the session that is shown, with verdicts that hold together."""
        return side_by_side(self._state.session.comparisons)

    @property
    def newest(self) -> PairedComparison | None:
        """The last comparison of the session that is shown; none that ran in the background."""
        comparisons = self.all
        place = newest_requested(comparisons)
        return None if place is None else comparisons[place]

    @property
    def busy(self) -> bool:
        """Whether a comparison was asked for that is not over; toggles chosen meanwhile wait."""
        return self._asked is not None

    @property
    def goes_on(self) -> Configuration | None:
        """What runs on when the comparison is over; None where nothing does."""
        return self._asked.goes_on if self._asked is not None else None

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
            if now is not None and not config_edit.ran_as(now, segment.configuration):
                return segment.configuration
        return None

    def why_not_before(self) -> str:
        """Why nothing can be compared with the configuration before; empty where it can."""
        state = self._state
        if reason := self.why_not():
            return reason
        if problem := pending_changes.problem(state):
            return problem
        before, now = self.before(), state.configuration
        if before is None or now is None:
            return "No other configuration has run yet: run one, then change a toggle."
        return _why_not_families(before, now)

    def against_before(self) -> None:
        """Compare the configuration being edited with the one before."""
        base, other = self.before(), self._state.configuration
        if base is not None and other is not None and not self.why_not_before():
            self.judge(base, other)

    def why_not_pair(self, base: Configuration, other: Configuration) -> str:
        """Return why two rows of a table cannot be compared here; empty where they can."""
        if base == other:
            return "Both ran the same configuration; Calibrate compares one with itself."
        for one in (base, other):
            if not config_edit.has(self._state.catalogue, one.family):
                return f"The runner has no family {one.family!r}."
        return self.why_not() or _why_not_families(base, other)

    def judge_pair(self, base: Configuration, other: Configuration) -> None:
        """Compare the configurations of two rows of a table; what runs goes on afterwards."""
        catalogue = self._state.catalogue
        if catalogue is None or self.why_not_pair(base, other):
            return
        self.pairChosen.emit()
        first, second = (config_edit.adopt(catalogue, one) for one in (base, other))
        self.judge(first, second, self._state.running)

    def judge(
        self, base: Configuration, other: Configuration, goes_on: Configuration | None = None
    ) -> None:
        """Compare two configurations; a run that this interrupts goes on with ``other``.

        Or with the configuration ``goes_on``.
        """
        if self.why_not():
            return
        command = protocol.Compare(
            base=base,
            other=other,
            budget_s=self.budget_s,
            seed=other.seed,
            predict=True,
            build_count=self.build_count,
        )
        if (catalogue := self._state.catalogue) is not None:
            command = calibration.respected(catalogue, command)
        self._ask(command, goes_on or other)

    def why_not_calibrate(self) -> str:
        """Why the machine cannot be calibrated now; empty where it can."""
        return self.why_not() or pending_changes.problem(self._state)

    def calibrate(self) -> None:
        """Compare the configuration being edited with itself, and keep the floor."""
        both = self._state.configuration
        if both is None or self.why_not_calibrate():
            return
        command = protocol.Compare(base=both, other=both, budget_s=CALIBRATION_S, seed=both.seed)
        self._ask(command, both, after=len(self._state.recorder.session.comparisons))

    def floor_text(self) -> str:
        """What identical arms of the kind being edited differ by here, and how old that is."""
        catalogue, configuration = self._state.catalogue, self._state.configuration
        if catalogue is None or configuration is None:
            return ""
        return calibration.told(self._known, calibration.kind_of(catalogue, configuration))

    def compared(self, base: Configuration, other: Configuration) -> bool:
        """Whether this session has a clear verdict on the two, in whichever order."""
        session = self._state.recorder.session
        for one in session.comparisons:
            if is_background(one):
                continue
            arms = [session.segments[place].configuration for place in one.facts["segments"]]
            if one.verdict != "UNDECIDED" and arms in ([base, other], [other, base]):
                return True
        return False

    def enough(self) -> None:
        """End the comparison with what it has; the run that it interrupted goes on."""
        if self._asked is not None:
            self._asked.ends_early = True
            self._state.stop()

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
        return self.why_not()

    def measure_more(self) -> None:
        """Go on with the newest comparison; its pairs so far count."""
        newest = self.newest
        if newest is None or self.why_not_more():
            return
        segments = self._state.session.segments
        base, other = (segments[place].configuration for place in newest.facts["segments"])
        facts = newest.facts
        command = protocol.Compare(
            base=base,
            other=other,
            budget_s=self.more_s(),
            region=facts.get("region", 0.01),
            floor=facts.get("floor", 0.0),
            floor_note=facts.get("floor_note", ""),
            half_width=0.0,  # all of the seconds: narrow enough ended it before, and undecided
            order=facts.get("order", "random"),
            seed=facts.get("seed", 0) + len(newest.order),  # else the old order came again
            before=_blocks(newest),
            before_s=facts.get("seconds", 0.0),
            predict="prediction" in facts,
            build_count=facts.get("build_count", 0),
        )
        self._ask(command, self._state.running)

    def _ask(
        self, command: protocol.Compare, goes_on: Configuration | None, after: int | None = None
    ) -> None:
        state = self._state
        if state.active:
            self._asked = _Asked(goes_on, ends=2, after=after)
        else:
            self._asked = _Asked(None, ends=1, after=after)
        state.perform(command)
        state.comparisonsChanged.emit()

    def _hear(self, message: protocol.AnyMessage) -> None:
        """A run goes on once its state is told; ``stateChanged`` may still be about what ended."""
        if isinstance(message, protocol.Finished):
            self._finished(message)
        elif isinstance(message, protocol.State) and message.state != "idle":
            self.resumes = False

    def _finished(self, message: protocol.Finished) -> None:
        asked = self._asked
        self.resumes = False
        if asked is None:
            return
        asked.ends -= 1
        if asked.ends:
            return
        self._asked = None
        if asked.after is not None and message.reason in ("done", "stopped"):
            self._keep_floor(asked.after)
        if asked.goes_on is not None:
            self._go_on(asked.goes_on, message.reason, asked.ends_early)
        self._state.comparisonsChanged.emit()

    def _go_on(self, configuration: Configuration, reason: str, early: bool) -> None:
        """Run again what was interrupted, with the toggles that were chosen meanwhile."""
        state = self._state
        if state.configuration is None or (reason in ("stopped", "cancelled") and not early):
            return  # it was the person who wanted it to end
        if config_edit.of_one_run(configuration, state.configuration):
            if reason == "failed":  # perhaps of a toggle that nobody has seen running
                state.edit(config_edit.with_toggles(state.configuration, configuration.toggles))
            configuration = config_edit.with_toggles(configuration, state.configuration.toggles)
        self.resumes = True
        state.send(state.checklists.start_of(configuration))

    def _keep_floor(self, after: int) -> None:
        """Store what the comparison that has just ended says of the machine."""
        state = self._state
        session = state.recorder.session
        if state.catalogue is None or len(session.comparisons) <= after:
            return
        comparison = session.comparisons[-1]
        (first, *_) = comparison.facts["segments"]
        try:
            found = calibration.calibrated(
                state.catalogue, comparison, session.segments[first].configuration
            )
            calibration.store(found)
        except ValueError as error:
            state.write(protocol.Note(kind="warning", text=f"not calibrated: {error}"))
        except OSError as error:
            state.write(protocol.Note(kind="warning", text=calibration.unstored(error)))
        else:
            state.write(protocol.Note(kind="info", text=calibration.describe(found)))
        self._read_floor()

    def _read_floor(self) -> None:
        catalogue = self._state.catalogue
        self._known = [] if catalogue is None else calibration.load(catalogue)

    def _forget(self) -> None:
        asked = self._asked
        if asked is not None and asked.ends > 1 and self._state.runner_state == "idle":
            asked.ends, asked.goes_on = 1, None  # what it was to interrupt had ended by itself
        if self._state.runner_state in ("starting", "dead"):
            self._asked, self.resumes = None, False

    def why_not(self) -> str:
        """Why no two configurations can be compared now; empty where they can."""
        state = self._state
        if state.replaying:
            return "This is a replay; open the window without --replay to measure."
        if self.busy or self.measuring:
            return "Two configurations are being compared."
        if self.resumes or state.runner_state not in ("idle", "running", "paused"):
            return "The runner is not ready."
        return ""


def _why_not_families(base: Configuration, other: Configuration) -> str:
    """Return why a verdict between two families is refused; empty for one family."""
    if base.family == other.family:
        return ""
    return (
        f"{base.family} and {other.family} are different models: a ratio of their step times is no "
        "speed-up. Run one family, change a toggle, then compare."
    )


def _blocks(comparison: PairedComparison) -> list[protocol.Block]:
    rows = zip(
        comparison.order,
        comparison.pairs,
        comparison.medians_ms,
        comparison.clocks_mhz,
        comparison.voids,
        comparison.means_ms or [math.nan] * len(comparison.order),
        comparison.builds or [0] * len(comparison.order),
        strict=True,
    )
    return [
        protocol.Block(
            arm=arm,
            pair=pair,
            median_ms=median,
            clock_mhz=clock if math.isfinite(clock) else None,
            void=void,
            mean_ms=mean if math.isfinite(mean) else None,
            build=build,
        )
        for arm, pair, median, clock, void, mean, build in rows
    ]
