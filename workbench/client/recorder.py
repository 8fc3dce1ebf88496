"""Folds the runner's messages into a session: the same for a live run, a replay and a recovery."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from sessions.ceilings import describe
from sessions.columns import Columns
from sessions.errors import SessionError
from sessions.model import (
    METRIC_COLUMNS,
    SAMPLING,
    STEP_COLUMNS,
    TELEMETRY_COLUMNS,
    Event,
    MetricSeries,
    Order,
    PairedComparison,
    Phase,
    PhaseSpan,
    Segment,
    Session,
    Study,
)
from sessions.plain_text import clip, one_line
from sessions.storage import content
from sessions.verdicts import work
from sessions.verdicts.background import BACKGROUND
from workbench import protocol, titles
from workbench.client.message_checks import (
    check_comparison,
    check_integers,
    check_phase,
    check_segment,
    check_steps,
    matrix,
    study_columns,
    with_blocks,
    without_blocks,
)

LONGEST_TEXT = 4000  # characters that a segment keeps of what it generated
LONGEST_REASON = 250  # characters of why a message is refused
_JUDGED = ("history", "pairs", "seconds", "builds", "cycles", "whole", "p", "settled", "more_s")


class Recorder:
    """Builds ``session`` from messages; messages that belong to no session (State ...) are ignored.

    A runner that dies may be followed by another one, with a clock and segment numbers of its own:
    they are moved so that the session's go on from where they were, even if the machine's clock was
    set back in between.
    """

    def __init__(self, session: Session | None = None) -> None:
        self.session = session or Session()
        self._introduced = False  # True if a runner has introduced itself
        self._offset_s = 0.0
        self._last_s = 0.0  # the latest time of all messages so far, on the session's clock
        self._segments: dict[int, Segment] = {}  # segments of the current runner, by its numbers
        self._open: Segment | None = None  # the last that began, until its run ends
        self._before: PhaseSpan | None = None  # first phase of the next segment
        self._described: dict[tuple[str, str], protocol.MetricInfo] = {}  # by family and name
        self._comparisons: dict[int, int] = {}  # the same, to places in the session
        self._paired = False  # True if other segments' blocks run beside the open one
        self._studies: dict[int, int] = {}

    @property
    def last_s(self) -> float:
        """The latest time so far, on the session's clock."""
        return self._last_s

    @property
    def offset_s(self) -> float:
        """Seconds from the present runner's clock to the session's."""
        return self._offset_s

    @property
    def next_segment(self) -> int:
        """The number that the present runner gives its next segment."""
        return max(self._segments, default=-1) + 1

    def record(self, message: protocol.AnyMessage) -> Segment | None:
        """Record one message; return the segment that it changed, if any.

        Raises ``WireError``, and leaves the session as it was, for a message that does not fit
        what came before it, or with which no program would open the session again.
        """
        try:
            return self._apply(message)
        except SessionError as error:
            raise protocol.WireError(one_line(str(error), LONGEST_REASON)) from None

    def _apply(self, message: protocol.AnyMessage) -> Segment | None:
        session = self.session
        if not isinstance(message, protocol.Catalogue):
            content.check_time(message.t_s + self._offset_s)
            self._last_s = max(self._last_s, message.t_s + self._offset_s)
        match message:
            case protocol.Catalogue():
                self._begin(message)
            case protocol.EnvironmentFound():
                environment = content.cleaned_names(message.facts, "environment")
                session.environment = {**session.environment, **environment}
            case protocol.CeilingsFound():
                t_s = message.t_s + self._offset_s
                if message.source == "measured" and session.orders and self._open is None:
                    self._before = PhaseSpan(Phase.CEILINGS, session.orders[-1].start_s, t_s)
                if message.ceilings is not None:
                    is_stored = message.source == "kept"
                    source = "stored by an earlier run" if is_stored else "measured in this run"
                    session.environment["ceilings"] = f"{describe(message.ceilings)} ({source})"
            case protocol.Ordered():
                session.orders.append(self._order(message))
            case protocol.SegmentStarted():
                return self._begin_segment(message)
            case protocol.PhaseChanged():
                segment = self._segment(message.segment)
                check_phase(message.phase)
                if self._is_beside(segment):
                    return segment
                t_s = message.t_s + self._offset_s
                _close_phase(segment, t_s)
                segment.phases.append(PhaseSpan(message.phase, t_s, t_s))
                return segment
            case protocol.Steps():
                segment = self._segment(message.segment)
                columns = self._columns(message.columns, STEP_COLUMNS)
                check_steps(segment, columns)
                segment.steps.append(columns)  # type: ignore[attr-defined]
                if len(columns["t_s"]) and not self._is_beside(segment):
                    _close_phase(segment, float(columns["t_s"][-1]))
                return segment
            case protocol.Metrics():
                segment = self._segment(message.segment)
                self._measure(segment, message)
                return segment
            case protocol.Generated():
                segment = self._segment(message.segment)
                _write(segment, message)
                return segment
            case protocol.TelemetrySamples():
                columns = self._columns(message.columns, TELEMETRY_COLUMNS)
                content.check_telemetry(columns, message.device)
                table = session.telemetry.setdefault(message.device, Columns(TELEMETRY_COLUMNS))
                table.append(columns)  # type: ignore[attr-defined]
                if self._open is not None and len(columns["t_s"]):  # a phase continues meanwhile
                    _close_phase(self._open, float(columns["t_s"][-1]))
            case protocol.Sampling():
                sampling = {f"{SAMPLING}{name}": text for name, text in message.how.items()}
                session.environment = {**session.environment, **sampling}
            case protocol.Facts():
                segment = self._segment(message.segment)
                ledger = {**segment.ledger, **message.ledger}
                check_segment(segment, ledger=ledger)
                segment.ledger.update(message.ledger)
                return segment
            case protocol.EvidenceFound():
                segment = self._segment(message.segment)
                segment.evidence = list(message.evidence)
                return segment
            case protocol.ComparisonStarted():
                self._begin_comparison(message)
            case protocol.ComparisonFacts():
                self._state(self._comparison(message.comparison), **message.facts)
            case protocol.BlockDone():
                number = self._comparison(message.comparison)
                comparison = session.comparisons[number]
                alone = with_blocks(without_blocks(comparison), [message.block])
                check_comparison(alone, len(session.segments), {})
                session.comparisons[number] = with_blocks(comparison, [message.block])
            case protocol.NumericsChecked():
                self._add_numerics(message)
            case protocol.EnergyMeasured():
                number = self._comparison(message.comparison)
                self._state(number, energy=msgspec.to_builtins(message.energy))
            case protocol.Judged():
                self._set_judgement(message)
            case protocol.StudyStarted():
                start_s = message.t_s + self._offset_s
                study = Study(message.kind, message.title, start_s, dict(message.request))
                content.cleaned_study(study, len(session.studies))
                self._studies[message.index] = len(session.studies)
                session.studies.append(study)
            case protocol.StudyRows():
                self._add_rows(message)
            case protocol.StudyFacts():
                number = self._study(message.study)
                study = session.studies[number]
                facts = {**study.facts, **message.facts}
                content.cleaned_study(dataclasses.replace(study, facts=facts, tables={}), number)
                session.studies[number] = dataclasses.replace(study, facts=facts)
            case protocol.Note():
                self._event(message.t_s, message.kind, message.text)
            case protocol.Described():
                session.title = clip(message.title, content.LONGEST_NAME)
                session.notes = clip(message.notes, content.LONGEST_TEXT)
            case protocol.Failure():
                kind = "warning" if message.kind == protocol.JOURNAL else "error"
                self._event(message.t_s, kind, message.sentence)
                if message.fatal:
                    self._end_segment(message.t_s + self._offset_s)
            case protocol.Finished():
                self._end_segment(message.t_s + self._offset_s)
                self._before = None
        return None

    def _begin(self, catalogue: protocol.Catalogue) -> None:
        session = self.session
        if not self._introduced and not session.segments:
            session.created = catalogue.created
        self._introduced, self._open = True, None
        self._offset_s = max(catalogue.created - session.created, self._last_s)
        self._segments, self._comparisons = {}, {}
        # A study of our own goes on, whichever runner it asks.
        self._studies = {i: at for i, at in self._studies.items() if i == protocol.OWN_STUDY}
        self._described = {
            (family.name, metric.name): metric
            for family in catalogue.families
            for metric in family.metrics
        }
        session.environment = dict(catalogue.environment)
        work.learn_toggles(session.environment)
        session.titles = {**session.titles, **titles.offered(catalogue)}

    def _order(self, message: protocol.Ordered) -> Order:
        """Return the received order of blocks, without those that the session already has."""
        session = self.session
        claims = self._studies.get(protocol.OWN_STUDY)
        if claims is not None and session.studies[claims].facts.get("final"):
            claims = None
        command = msgspec.to_builtins(message.command)
        return Order(
            start_s=message.t_s + self._offset_s,
            command={name: value for name, value in command.items() if name != "before"},
            segments=len(session.segments),
            comparisons=len(session.comparisons),
            studies=len(session.studies),
            claims=claims,
        )

    def _begin_segment(self, message: protocol.SegmentStarted) -> Segment:
        segment = Segment(
            index=len(self.session.segments),
            configuration=message.configuration,
            label=clip(message.label, content.LONGEST_NAME),
            start_s=message.t_s + self._offset_s,
            ledger=dict(message.ledger),
            phases=[] if self._before is None else [self._before],
        )
        check_segment(segment)
        self._end_segment(message.t_s + self._offset_s)
        self._before = None
        self.session.segments.append(segment)
        self._segments[message.index] = self._open = segment
        return segment

    def _is_beside(self, segment: Segment) -> bool:
        """Return True for an ended baseline whose blocks run beside the open segment."""
        return self._paired and segment is not self._open

    def _end_segment(self, stop_s: float) -> None:
        """End the last phase with its run: nothing builds or warms up until the next begins."""
        self._paired = False
        if self._open is not None:
            _close_phase(self._open, stop_s)
            self._open = None

    def _measure(self, segment: Segment, message: protocol.Metrics) -> None:
        matrices = {
            name: matrix(name, rows, segment.metrics.get(name))
            for name, rows in message.values.items()
        }
        segment.metrics |= {
            name: self._new_series(segment, name, values_RC.shape)
            for name, values_RC in matrices.items()
            if name not in segment.metrics
        }
        for name, values_RC in matrices.items():
            batch = {"t_s": [message.t_s + self._offset_s], "values": values_RC[None]}
            segment.metrics[name].table.append(batch)  # type: ignore[attr-defined]

    def _new_series(self, segment: Segment, name: str, shape: tuple[int, ...]) -> MetricSeries:
        rows, columns = shape
        dtypes = METRIC_COLUMNS | {"values": f"({rows},{columns}){METRIC_COLUMNS['values']}"}
        description = self._described.get((segment.configuration.family, name))
        series = MetricSeries(
            title=description.title if description else name,
            unit=description.unit if description else "",
            help=description.help if description else "",
            row=description.row if description else "row",
            column=description.column if description else "column",
            shape=(rows, columns),
            table={},
        )
        content.cleaned_metric(name, series)
        return dataclasses.replace(series, table=Columns(dtypes))

    def _segment(self, index: int) -> Segment:
        try:
            return self._segments[index]
        except KeyError:
            raise protocol.WireError(f"segment {index} was never started") from None

    def _begin_comparison(self, message: protocol.ComparisonStarted) -> None:
        comparisons = self.session.comparisons
        segments = [self._segment(index).index for index in message.segments]
        started = PairedComparison(
            arms=message.arms,
            order=[],
            medians_ms=[],
            ratio=math.nan,
            low=math.nan,
            high=math.nan,
            verdict="UNDECIDED",
            facts={
                **message.request,
                "segments": segments,
                "history": [],
                **work.facts_of([self.session.segments[segment] for segment in segments]),
                **_foretold(message),
            },
        )
        started = with_blocks(started, message.before)
        check_comparison(started, len(self.session.segments), started.facts)
        self._paired = bool(message.request.get(BACKGROUND))
        for number, earlier in enumerate(comparisons):
            if message.before and _blocks_of(earlier) == _blocks_of(started):
                known = {n: earlier.facts[n] for n in _JUDGED if n in earlier.facts}
                comparisons[number] = msgspec.structs.replace(
                    started,  # until the next judgement, the ratio of the earlier blocks holds
                    ratio=earlier.ratio,
                    low=earlier.low,
                    high=earlier.high,
                    verdict=earlier.verdict,
                    facts={**started.facts, **known},
                )
                self._comparisons[message.index] = number
                return
        self._comparisons[message.index] = len(comparisons)
        comparisons.append(started)

    def _comparison(self, index: int) -> int:
        try:
            return self._comparisons[index]
        except KeyError:
            raise protocol.WireError(f"comparison {index} was never started") from None

    def _add_numerics(self, message: protocol.NumericsChecked) -> None:
        number = self._comparison(message.comparison)
        if not 0 <= message.arm < len(self.session.comparisons[number].arms):
            raise protocol.WireError(f"comparison {message.comparison} has no arm {message.arm}")
        numerics = self.session.comparisons[number].facts.get("numerics", {})
        checked = {**numerics, str(message.arm): msgspec.to_builtins(message.numerics)}
        self._state(number, numerics=checked)

    def _set_judgement(self, message: protocol.Judged) -> None:
        number = self._comparison(message.comparison)
        judgement = message.judgement
        history = self.session.comparisons[number].facts["history"]
        if judgement.low is not None and (not history or history[-1][0] != judgement.pairs):
            history = [*history, [judgement.pairs, judgement.ratio, judgement.low, judgement.high]]
        facts = msgspec.to_builtins(judgement)
        facts |= {"history": history, "seconds": message.seconds, "final": message.final}
        ends = {name: facts.pop(name) for name in ("ratio", "low", "high")}
        verdict = facts.pop("verdict")
        judged = msgspec.structs.replace(
            self.session.comparisons[number],
            verdict=verdict,
            **{name: math.nan if end is None else end for name, end in ends.items()},
        )
        newest = {**facts, "history": history[-1:]}
        check_comparison(without_blocks(judged), len(self.session.segments), newest)
        self.session.comparisons[number] = msgspec.structs.replace(
            judged, facts={**judged.facts, **facts}
        )

    def _study(self, index: int) -> int:
        try:
            return self._studies[index]
        except KeyError:
            raise protocol.WireError(f"study {index} was never started") from None

    def _add_rows(self, message: protocol.StudyRows) -> None:
        # A new study each time: another thread may be saving the old one.
        number = self._study(message.study)
        study = self.session.studies[number]
        new_columns = study_columns(message)
        content.cleaned_study(
            dataclasses.replace(study, tables={message.table: new_columns}), number
        )
        known = {} if message.replace else study.tables.get(message.table, {})
        if known:
            kinds = [
                {name: c.dtype.kind for name, c in columns.items()}
                for columns in (known, new_columns)
            ]
            if kinds[0] != kinds[1]:
                raise protocol.WireError(
                    f"table {message.table[:40]!r}: columns {sorted(new_columns)} do not continue "
                    f"{sorted(known)}, or text follows numbers"
                )
            new_columns = {name: np.concatenate([known[name], new_columns[name]]) for name in known}
        tables = {**study.tables, message.table: new_columns}
        self.session.studies[number] = dataclasses.replace(study, tables=tables)

    def _state(self, number: int, **facts: Any) -> None:
        comparison = self.session.comparisons[number]
        check_comparison(without_blocks(comparison), len(self.session.segments), facts)
        self.session.comparisons[number] = msgspec.structs.replace(
            comparison, facts={**comparison.facts, **facts}
        )

    def _columns(
        self, columns: Mapping[str, list[float | None]], dtypes: Mapping[str, str]
    ) -> dict[str, np.ndarray]:
        """Return the columns as numbers that their dtypes can hold, on the session's clock."""
        if "t_s" not in columns or not columns.keys() <= dtypes.keys():
            raise protocol.WireError(
                f"columns {sorted(columns)}: expected t_s, and others of {sorted(dtypes)}"
            )
        if len({len(values) for values in columns.values()}) > 1:
            lengths = {name: len(values) for name, values in columns.items()}
            raise protocol.WireError(f"columns of one batch differ in length: {lengths}")
        arrays = {name: np.asarray(values, np.float64) for name, values in columns.items()}
        for name, values in arrays.items():
            if np.dtype(dtypes[name]).kind in "iu":
                check_integers(name, values, np.iinfo(dtypes[name]))
        if "phase" in arrays and arrays["phase"].size:
            check_phase(int(arrays["phase"].max()), last=Phase.STEADY)
        arrays["t_s"] += self._offset_s
        with np.errstate(over="ignore"):
            return {name: values.astype(dtypes[name]) for name, values in arrays.items()}

    def _event(self, t_s: float, kind: str, text: str) -> None:
        event = Event(t_s + self._offset_s, kind, clip(text, content.LONGEST_TEXT))
        self.session.events.append(event)


def _foretold(message: protocol.ComparisonStarted) -> dict[str, Any]:
    prediction = message.prediction
    return {} if prediction is None else {"prediction": msgspec.to_builtins(prediction)}


def _write(segment: Segment, message: protocol.Generated) -> None:
    """Keep the newest text in the ledger, and no other: a session is about time, not words."""
    begins = message.start == 0
    before = "" if begins else str(segment.ledger.get("text", ""))
    segment.ledger["text"] = (before + message.text)[-LONGEST_TEXT:]
    if begins:
        segment.ledger["prompt"] = message.prompt[-LONGEST_TEXT:]


def _close_phase(segment: Segment, stop_s: float) -> None:
    if segment.phases:
        last = segment.phases[-1]  # the client's report of a runner's death has no time
        segment.phases[-1] = PhaseSpan(last.phase, last.start_s, max(last.stop_s, stop_s))


def _blocks_of(comparison: PairedComparison) -> object:
    """Return the facts that identify a comparison."""
    return comparison.arms, comparison.order, comparison.medians_ms, comparison.pairs
