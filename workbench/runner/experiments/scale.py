"""A run that measures how steps scale over ranks: paired comparisons with one device.

Every kind and number of ranks is compared with one device in blocks that alternate, and its numbers
are checked. What each rank does is recorded after everything was timed: a profiler may leave later
steps slower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import msgspec

from sessions.model import Configuration, Judgement, Numerics
from sessions.studies import rank_scaling
from sessions.studies.rank_scaling import (
    KIND,
    MODES,
    ONE_DEVICE,
    POINTS,
    RANKS,
    STRONG,
    efficiency,
    skew_ms,
)
from sessions.studies.sweep import FAILED, MEASURED, REFUSED
from sessions.verdicts import verdict
from workbench import protocol
from workbench.runner.config.resolve import require_unblocked, resolve
from workbench.runner.config.values import check_comparison
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.compare import CompareRun
from workbench.runner.experiments.paired.blocks import Contender
from workbench.runner.experiments.paired.interleaving import Alternation
from workbench.runner.experiments.rank_kinds import require_kind, toggles_of
from workbench.runner.experiments.run import RunEnded
from workbench.runner.experiments.study_sender import Facts, StudySender, verdict_facts
from workbench.runner.failures import Cancelled, Explained, Mistake, explain, is_fatal, name_outcome
from workbench.runner.toggles import Situation
from workbench.runner.toggles._ranks import layout_of

LANE_STEPS = 3  # steps that are profiled at each point
MOST_RANKS = 1024
BUSY = "Scaling is being measured; stop before changing a toggle."
ON_CPU = (
    "Without a GPU, the ranks are processes that share the CPU: results are checked, but the times "
    "do not show how GPUs scale"
)
RECORDED = (
    "Exposed communication and skew come from {steps} profiled steps after all timing; exposed "
    "communication is time in collectives in which a rank computes nothing, including waiting for "
    "slower ranks"
)
NOT_RECORDED = "Exposed communication and skew were not measured"
_RATIOS = ("ratio", "ratio_low", "ratio_high", "efficiency", "low", "high")
_AMOUNTS = ("step_ms", "exposed_ms", "communication_ms", "skew_ms", "peak_bytes", "wrong")
_TIMES = ("step_ms", "computing_ms", "waiting_ms", "idle_ms", "communication_ms")  # lane columns
_BLANK: dict[str, float | str | None] = {
    **dict.fromkeys((*_RATIOS, *_AMOUNTS), math.nan),
    **dict.fromkeys(("verdict", "numerics", "reason"), ""),
    "pairs": 0,
}

Row = dict[str, float | str | None]


@dataclass
class Point:
    """A kind on a number of ranks: what to compare, and the result."""

    kind: str
    count: int
    situation: Situation | None = None
    refused: str = ""
    contender: Contender | None = None  # set after its measurement
    judgement: Judgement | None = None  # set likewise; not corrected for the number of points
    row: Row = field(default_factory=dict)
    ranks: list[Row] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its name in texts."""
        return rank_scaling.name_of({"kind": self.kind, "count": self.count})


class ScaleRun:
    """Compares all kinds and numbers of ranks with one device, one after another."""

    def __init__(self, context: RunnerContext, command: protocol.Scale) -> None:
        self._context, self._command = context, command
        self._study = StudySender(context)
        self._one_device: Row = {}
        self._base_numerics: Numerics | None = None  # results on one device; None before the check
        self._points: list[Point] = []
        self._mistake: protocol.Failure | None = None  # why the last refused build failed
        self.steps = 0

    def execute(self) -> None:
        """Measure to the end; raises ``Cancelled``, ``RunEnded``, what is fatal, or a mistake.

        A mistake that only some points have is their outcome.
        """
        self._points = self._plan()
        self._announce()
        try:
            for number, point in enumerate(self._points):
                self._context.progress("scaling", number / len(self._points), point.name)
                self._measure(point)
            outcomes = {point.row["outcome"] for point in self._points}
            if self._mistake is not None and outcomes == {REFUSED}:
                raise Explained(self._mistake)
            if self._command.lanes:
                self._record_all()
            self._context.progress("scaling", 1.0, "")
        finally:
            self._context.watchdog.active = False

    def _plan(self) -> list[Point]:
        """Return the points, by number of ranks; raise ``Mistake`` if none can be measured."""
        command, context = self._command, self._context
        check_comparison(command)
        (base,) = context.resolve(command.base)
        counts = sorted(set(command.ranks) - {1})
        if not counts or not 1 < counts[-1] <= MOST_RANKS or counts[0] < 1:
            raise Mistake(f"ranks = {command.ranks}: name at least one from 2 to {MOST_RANKS}")
        if not command.kinds or len(set(command.kinds)) < len(command.kinds):
            raise Mistake(f"kinds = {command.kinds}: name at least one kind, and each once")
        if command.mode not in MODES:
            raise Mistake(f"mode: unknown {command.mode!r}; expected one of {', '.join(MODES)}")
        for kind in command.kinds:
            require_kind(kind)
        if layout_of(base).ranks > 1:
            raise Mistake(
                "the configuration already has several ranks; switch its Devices toggles off, "
                "because the kinds set them"
            )
        points = [self._point(kind, count) for count in counts for kind in command.kinds]
        if all(point.refused for point in points):
            raise Mistake(points[0].refused)
        return points

    def _point(self, kind: str, count: int) -> Point:
        point = Point(kind, count)
        try:
            point.situation = resolve(self._configuration(kind, count), self._context.device)
            require_unblocked(point.situation)
        except ValueError as error:
            point.refused = str(error)
        return point

    def _configuration(self, kind: str, count: int) -> Configuration:
        base, command = self._command.base, self._command
        toggles = {**base.toggles, **toggles_of(kind, count), **command.toggles}
        configuration = msgspec.structs.replace(base, toggles=toggles)
        if command.mode == STRONG:
            return configuration
        batch = int(resolve(base, self._context.device).configuration.settings["batch"])
        return configuration.replaced("settings.batch", batch * count)

    def _announce(self) -> None:
        context, command = self._context, self._command
        base = resolve(command.base, context.device).configuration
        request: Facts = {
            "mode": command.mode,
            "batch": int(base.settings["batch"]),
            "kinds": [*command.kinds],
            "ranks": [*command.ranks],
            "base": msgspec.json.encode(base).decode(),
            "toggles": [f"{name}={option}" for name, option in command.toggles.items()],
            **verdict_facts(command),
        }
        self._study.begin(KIND, f"{base.title}: {command.mode} scaling", request)
        on_gpu = context.device.type == "cuda"
        memory = "peak memory" if on_gpu else "resident set"
        self._study.facts(memory=memory, communication=NOT_RECORDED)
        if not on_gpu:
            self._study.facts(device=ON_CPU)

    # Comparisons

    def _measure(self, point: Point) -> None:
        """Compare a point with one device, or report why that is impossible."""
        if point.situation is None or point.refused:
            self._report(point, outcome=REFUSED, reason=point.refused)
            return
        command = self._command
        run = CompareRun(
            self._context,
            protocol.Compare(
                base=command.base,
                other=point.situation.configuration,
                budget_s=command.budget_s,
                region=command.region,
                floor=command.floor,
                floor_note=command.floor_note,
                half_width=command.half_width,
                seed=command.seed,
                build_count=1,
                energy=False,
            ),
            base_numerics=self._base_numerics,
        )
        fatal: Exception | None = None
        try:
            run.execute()
        except (Cancelled, RunEnded):
            self._report_point(point, run)
            raise
        except Exception as error:  # noqa: BLE001 - ranks and models may raise anything
            failure = explain(error)
            outcome = name_outcome(failure)
            self._report(point, outcome=outcome, reason=failure.sentence)
            self._mistake = failure if failure.kind == "mistake" else self._mistake
            fatal = error if is_fatal(error) else None
        else:
            self._report_point(point, run)
            if not point.row:
                self._report(point, outcome=FAILED, reason="no pair of blocks was valid")
            return
        finally:
            self.steps += run.steps
            for contender in run.contenders:
                contender.variant = None
        # Outside of the except clause: its traceback would keep the tensors of what failed.
        if fatal is not None:
            raise fatal
        self._context.variants.forget_all()

    def _report_point(self, point: Point, run: CompareRun) -> None:
        """Report the result of a comparison, if it has one."""
        judgement = run.judgement
        if judgement is None or judgement.ratio is None or len(run.numerics) < 2:
            return
        base, other = run.contenders
        ratio, low, high = (
            math.nan if end is None else end
            for end in (judgement.ratio, judgement.low, judgement.high)
        )
        estimate = efficiency(self._command.mode, point.count, ratio, low, high)
        peaks = self._peaks(other)
        if self._base_numerics is None and run.numerics[0].ok is not None:
            text = f"{run.numerics[0].text}; checked only in the first comparison"
            self._base_numerics = msgspec.structs.replace(run.numerics[0], text=text)
        if not self._one_device:
            self._one_device = {
                **_BLANK,
                **_numbers(run.numerics[0]),
                "kind": ONE_DEVICE,
                "count": 1,
                "outcome": MEASURED,
                "ratio": 1.0,
                "efficiency": 1.0,
                "step_ms": _step_ms(run, 0),
                "peak_bytes": self._context.own_peak(base.segment),
            }
        point.contender, point.judgement = other, judgement
        point.ranks = [
            {"rank": rank, "host": "", "peak_bytes": peak, **dict.fromkeys(_TIMES, math.nan)}
            for rank, peak in enumerate(peaks)
        ]
        self._report(
            point,
            **_numbers(run.numerics[1]),
            outcome=MEASURED,
            reason="; ".join(_without_effect(other)),
            ratio=ratio,
            ratio_low=low,
            ratio_high=high,
            pairs=judgement.pairs,
            efficiency=estimate.value,
            low=estimate.low,
            high=estimate.high,
            step_ms=_step_ms(run, 1),
            peak_bytes=max(peaks, default=math.nan),
        )

    def _peaks(self, contender: Contender) -> list[float]:
        """Return each rank's highest memory in steps; empty if the variant was freed."""
        divided = None if contender.variant is None else contender.variant.divided
        return [] if divided is None else [float(peak) for peak in divided.peaks]

    # Lanes

    def _record_all(self) -> None:
        """Record the lanes of all points, the most ranks first, because those ranks still run."""
        measured = [point for point in self._points if point.contender is not None]
        for point in reversed(measured):
            self._context.progress("scaling", 1.0, f"recording the ranks of {point.name}")
            try:
                self._record(point)
            except (Cancelled, RunEnded):
                raise
            except Exception as error:
                if is_fatal(error):
                    raise
                text = f"the ranks of {point.name} were not recorded: {explain(error).sentence}"
                self._context.note("warning", text)
        self._send_all()

    def _record(self, point: Point) -> None:
        context, contender = self._context, point.contender
        assert contender is not None
        turns = Alternation(context, self._command.budget_s, 1, BUSY)
        turns.contenders = [contender]
        context.variants.keep_only(contender.situation)
        try:
            turns.build(contender)
            context.segment = contender.segment
            context.state("running", f"Recording the ranks of {point.name}")
            turns.warm_up(contender)
            arm = contender.variant
            assert arm is not None and arm.divided is not None
            with context.unwatched(), arm.entered():
                lanes = arm.divided.record_lanes(lambda: (arm.ready(), arm.step()), LANE_STEPS)
        finally:
            contender.variant = None
            self.steps += turns.steps
        peaks = {row["rank"]: row["peak_bytes"] for row in point.ranks}
        point.ranks = [
            {
                "rank": rank_lane.rank,
                "host": rank_lane.host,
                "peak_bytes": peaks.get(rank_lane.rank, math.nan),
                **{name: getattr(rank_lane.lane, name) for name in _TIMES},
            }
            for rank_lane in lanes
        ]
        point.row["exposed_ms"] = median(rank.lane.waiting_ms for rank in lanes)
        point.row["communication_ms"] = median(rank.lane.communication_ms for rank in lanes)
        point.row["skew_ms"] = skew_ms([rank.lane.computing_ms for rank in lanes])
        self._study.facts(communication=RECORDED.format(steps=LANE_STEPS))

    # Messages

    def _report(self, point: Point, **row: float | str | None) -> None:
        point.row = {**_BLANK, "kind": point.kind, "count": point.count, **row}
        self._send_all()

    def _send_all(self) -> None:
        """Send all present rows, with verdicts that hold for all points together."""
        judgements = {p.name: p.judgement for p in self._points if p.judgement is not None}
        corrected = dict(zip(judgements, verdict.corrected([*judgements.values()]), strict=True))
        rows = [self._one_device]
        for point in self._points:
            row = dict(point.row)
            if judgement := corrected.get(point.name):
                reasons = filter(None, (row["reason"], *judgement.reasons))
                row |= {"verdict": judgement.verdict, "reason": "; ".join(map(str, reasons))}
            rows.append(row)
        self._send(POINTS, [row for row in rows if row])
        self._send(
            RANKS,
            [
                {"kind": point.kind, "count": point.count, **row}
                for point in self._points
                for row in point.ranks
            ],
        )

    def _send(self, table: str, rows: Sequence[Row]) -> None:
        if rows:
            columns = {name: [row[name] for row in rows] for name in rows[0]}
            self._study.rows(table, columns, replace=True)


def _numbers(numerics: Numerics) -> Row:
    wrong = math.nan if numerics.ok is None else float(not numerics.ok)
    return {"wrong": wrong, "numerics": numerics.text}


def _step_ms(run: CompareRun, arm: int) -> float:
    times = [block.median_ms for block in run.blocks if block.arm == arm and not block.void]
    return median(times) if times else math.nan


def _without_effect(contender: Contender) -> list[str]:
    """Return a clause if toggles of several ranks had no effect."""
    if contender.variant is None:
        return []
    idle = [e.toggle for e in contender.variant.find_evidence() if e.status == "no effect"]
    return [f"no effect: {', '.join(idle)}"] if idle else []
