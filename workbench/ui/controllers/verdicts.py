"""Paired comparisons as the window asks for them: what to compare, for how long, and why not."""

from __future__ import annotations

import math

from PySide6.QtCore import QObject, Signal

from sessions import session_log
from sessions.model import Configuration, PairedComparison
from sessions.verdicts.background import is_background, newest_requested
from sessions.verdicts.multiple_comparisons import side_by_side
from sessions.verdicts.verdict_words import duration
from workbench import calibration, protocol
from workbench.ui.controllers.measurements import Measurements
from workbench.ui.settings import Settings
from workbench.ui.state import config_edit
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import NOT_READY, RunModel
from workbench.ui.state.session import SessionModel

BUDGET_S = 20.0
REGION = 0.01
CALIBRATION_S = 60.0
MOST_MORE_S = 600.0  # most seconds that one click may add


class Verdicts(QObject):
    """Requests for comparisons; their results are in the session's ``comparisons``."""

    defaultsChanged = Signal()  # budget or region of verdicts to come
    pairChosen = Signal()  # a table's row is being compared: the verdict wants to be seen

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        measurements: Measurements,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._run = session, run
        self._configuration, self._measurements = configuration, measurements
        self.budget_s = BUDGET_S  # seconds of alternating that a new comparison may take
        self.region = REGION  # arms within this relative difference are the same
        self.build_count = 0  # builds of each arm, as in ``protocol.Compare``
        self._settings: Settings | None = None
        self._baseline = 0  # the segment that the runner's baseline was taken from
        self._known: list[calibration.Calibration] = []  # calibrations of the runner's machine
        # The comparisons for which verdicts that hold together were found, and these verdicts.
        self._judged: tuple[list[PairedComparison], list[PairedComparison]] = [], []
        # Number of comparisons before a calibration.
        self._calibrated_after: int | None = None
        configuration.catalogueChanged.connect(self._read_floor)
        measurements.ended.connect(self._on_measurement_ended)
        session.segmentsChanged.connect(self._send_baseline)

    def keep_in(self, settings: Settings) -> None:
        """Load the stored settings of verdicts, and store later changes."""
        self._settings = settings
        self.build_count = settings.build_count
        self.budget_s, self.region = settings.budget_s, settings.region
        self.defaultsChanged.emit()

    def set_defaults(self, budget_s: float, region: float) -> None:
        """Set the budget of future verdicts, and the region within which arms are the same."""
        self.budget_s, self.region = budget_s, region
        if self._settings is not None:
            self._settings.budget_s, self._settings.region = budget_s, region
        self.defaultsChanged.emit()

    def set_build_count(self, count: int) -> None:
        """Set how often future verdicts build both arms; 0: several times if that is cheap."""
        self.build_count = count
        if self._settings is not None:
            self._settings.build_count = count

    def _send_baseline(self) -> None:
        """Tell the runner which segment ratios refer to, if the user chose another one."""
        segments = self._session.shown.segments
        if self._session.baseline == self._baseline:
            return
        if not self._session.baseline_chosen:  # the runner takes its first steady segment itself
            self._baseline = self._session.baseline
            return
        self._baseline = self._session.baseline
        if self._session.live and self._run.active and self._session.baseline < len(segments):
            chosen = segments[self._session.baseline].configuration
            self._run.send(protocol.Baseline(configuration=chosen))

    @property
    def all(self) -> list[PairedComparison]:
        """The comparisons of the shown session, with verdicts that hold together."""
        comparisons = self._session.shown.comparisons
        if comparisons != self._judged[0]:
            self._judged = [*comparisons], side_by_side(comparisons)
        return self._judged[1]

    @property
    def newest(self) -> PairedComparison | None:
        """The last comparison of the shown session; none that ran in the background."""
        comparisons = self.all
        index = newest_requested(comparisons)
        return None if index is None else comparisons[index]

    @property
    def busy(self) -> bool:
        """True from the request of a comparison until its end; toggles chosen meanwhile wait."""
        return self._measurements.is_pending(protocol.Compare)

    @property
    def measuring(self) -> bool:
        """True while the newest comparison, and not a run after it, is being measured."""
        newest = self.newest
        return (
            newest is not None
            and self._session.live
            and self._run.active
            and not newest.facts.get("final", False)
            and newest.segment_indices[-1:] == [len(self._session.shown.segments) - 1]
        )

    def before(self) -> Configuration | None:
        """Return the last configuration that ran and differs from the edited one.

        Variants that a study made, such as other batch sizes of a checklist, do not count.
        """
        edited, session = self._configuration.edited, self._session.recorder.session
        made = session_log.study_segments(session)
        for segment in reversed(session.segments):
            ran_as_edited = edited is None or config_edit.ran_as(edited, segment.configuration)
            if segment.index not in made and not ran_as_edited:
                return segment.configuration
        return None

    def why_not_before(self) -> str:
        """Return why nothing can be compared with the configuration before; empty if it can."""
        if reason := self.why_not():
            return reason
        if problem := self._configuration.problem():
            return problem
        before, edited = self.before(), self._configuration.edited
        if before is None or edited is None:
            return "No other configuration has run yet: press Run, then change a toggle."
        return self._why_not_families(before, edited)

    def against_before(self) -> None:
        """Compare the edited configuration with the one before."""
        base, other = self.before(), self._configuration.edited
        if base is not None and other is not None and not self.why_not_before():
            self.judge(base, other)

    def why_not_pair(self, base: Configuration, other: Configuration) -> str:
        """Return why two rows of a table cannot be compared here; empty if they can."""
        if base == other:
            return "Both rows have the same configuration; Calibrate compares it with itself."
        for configuration in (base, other):
            if missing := config_edit.missing(self._configuration.catalogue, configuration):
                return f"The runner has no {missing}."
        return self.why_not() or self._why_not_families(base, other)

    def judge_pair(self, base: Configuration, other: Configuration) -> None:
        """Compare the configurations of two rows of a table; the current run resumes afterwards."""
        catalogue = self._configuration.catalogue
        if catalogue is None or self.why_not_pair(base, other):
            return
        self.pairChosen.emit()
        first, second = (
            config_edit.adopt(catalogue, configuration) for configuration in (base, other)
        )
        self.judge(first, second, self._run.running)

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
            region=self.region,
            seed=other.seed,
            predict=True,
            build_count=self.build_count,
        )
        if (catalogue := self._configuration.catalogue) is not None:
            command = calibration.respected(catalogue, command)
        self._perform(command, goes_on or other)

    def why_not_calibrate(self) -> str:
        """Return why the machine cannot be calibrated now; empty if it can."""
        return self.why_not() or self._configuration.problem()

    def calibrate(self) -> None:
        """Compare the edited configuration with itself, and store the noise floor."""
        configuration = self._configuration.edited
        if configuration is None or self.why_not_calibrate():
            return
        command = protocol.Compare(
            base=configuration,
            other=configuration,
            budget_s=CALIBRATION_S,
            seed=configuration.seed,
            energy=False,
        )
        self._perform(command, configuration, after=len(self._session.recorder.session.comparisons))

    def floor_text(self) -> str:
        """Return how much identical arms like the edited configuration differ here, and its age."""
        catalogue, configuration = self._configuration.catalogue, self._configuration.edited
        if catalogue is None or configuration is None:
            return ""
        return calibration.floor_sentence(
            self._known, calibration.kind_of(catalogue, configuration)
        )

    def compared(self, base: Configuration, other: Configuration) -> bool:
        """Return True if this session has a clear verdict on the two, in either order."""
        session = self._session.recorder.session
        for comparison in session.comparisons:
            if is_background(comparison):
                continue
            arms = [session.segments[index].configuration for index in comparison.segment_indices]
            if comparison.verdict != "UNDECIDED" and arms in ([base, other], [other, base]):
                return True
        return False

    def enough(self) -> None:
        """End the comparison with the pairs so far; the run that it interrupted goes on."""
        if self.busy:
            self._measurements.end_early()

    def more_s(self) -> float:
        """Return the number of seconds to extend the newest comparison by."""
        newest = self.newest
        needed_s = None if newest is None else newest.facts.get("more_s")
        if needed_s is None:
            return self.budget_s
        return float(min(max(1, math.ceil(needed_s)), MOST_MORE_S))

    def more_text(self) -> str:
        """Return the label of the button that continues the measurement; empty if it cannot."""
        return "" if self.why_not_more() else f"Measure {duration(self.more_s())} more"

    def why_not_more(self) -> str:
        """Return why the newest comparison cannot be extended; empty if it can."""
        if self.newest is None:
            return "Nothing has been compared yet."
        if not self._session.live:
            return "This session is a file; only the live session can be measured further."
        if len(self.newest.segment_indices) != 2:
            return "The session does not name the segments of the newest comparison."
        return self.why_not()

    def measure_more(self) -> None:
        """Extend the newest comparison; its pairs so far count."""
        newest = self.newest
        if newest is None or self.why_not_more():
            return
        segments = self._session.shown.segments
        base, other = (segments[index].configuration for index in newest.segment_indices)
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
            seed=facts.get("seed", 0) + len(newest.order),  # otherwise the earlier order repeats
            before=_blocks(newest),
            before_s=facts.get("seconds", 0.0),
            predict="prediction" in facts,
            build_count=facts.get("build_count", 0),
        )
        self._perform(command, self._run.running)

    def _perform(
        self, command: protocol.Compare, goes_on: Configuration | None, after: int | None = None
    ) -> None:
        self._calibrated_after = after
        self._measurements.perform(command, goes_on)
        self._session.comparisonsChanged.emit()

    def _on_measurement_ended(self, command: protocol.RunCommand, reason: str) -> None:
        if not isinstance(command, protocol.Compare):
            return
        after, self._calibrated_after = self._calibrated_after, None
        if after is not None and reason in ("done", "stopped"):
            self._keep_floor(after)
        self._session.comparisonsChanged.emit()

    def _keep_floor(self, after: int) -> None:
        """Store the noise floor that the comparison which has just ended shows."""
        session = self._session.recorder.session
        if self._configuration.catalogue is None or len(session.comparisons) <= after:
            return
        comparison = session.comparisons[-1]
        first = comparison.segment_indices[0]
        try:
            measured = calibration.calibrated(
                self._configuration.catalogue, comparison, session.segments[first].configuration
            )
            calibration.store(measured)
        except ValueError as error:
            self._session.write(protocol.Note(kind="warning", text=f"not calibrated: {error}"))
        except OSError as error:
            self._session.write(protocol.Note(kind="warning", text=calibration.unstored(error)))
        else:
            self._session.write(protocol.Note(kind="info", text=calibration.describe(measured)))
        self._read_floor()

    def _read_floor(self) -> None:
        catalogue = self._configuration.catalogue
        self._known = [] if catalogue is None else calibration.load(catalogue)

    def why_not(self) -> str:
        """Return why no two configurations can be compared now; empty if it is possible."""
        is_comparing = self.busy or self.measuring
        pending = "Two configurations are being compared." if is_comparing else ""
        why = self._run.why_not("measure", pending)
        return why or (NOT_READY if self._measurements.resumes else "")

    def _why_not_families(self, base: Configuration, other: Configuration) -> str:
        """Return why a verdict between two families is refused; empty for one family."""
        if base.family == other.family:
            return ""
        catalogue = self._configuration.catalogue
        families = () if catalogue is None else catalogue.families
        titles = {family.name: family.title for family in families}
        first, second = (titles.get(name, name) for name in (base.family, other.family))
        return (
            f"{first} and {second} are different models: a ratio of their step times is no "
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
