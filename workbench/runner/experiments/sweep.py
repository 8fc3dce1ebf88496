"""A run that measures one configuration at many sizes: a point for each combination and each arm.

The sizes come in random order, and the arms of each size in random order, too. So a drifting clock
looks like scatter and not like scaling, and arms of one size are measured close to each other. Each
point is built alone in memory; everything that the next point cannot share is freed. A point that
does not fit, cannot be used, or fails, has a reason instead, and the sweep continues. A preset or
an option that does not exist is refused before the first point. Each arm's numbers are checked
once, at its smallest size, after its timing; for a field that is not a size, such as a toggle, they
are checked for each value.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from dataclasses import dataclass

import msgspec

from sessions.columns import TableColumns
from sessions.model import Configuration, Numerics, Phase, Scalar
from sessions.numbers import counted
from sessions.studies import sweep
from workbench import protocol
from workbench.runner.building.labels import label
from workbench.runner.config.availability import require_unblocked
from workbench.runner.config.resolve import report_left_out, resolve
from workbench.runner.config.values import check_choice, check_seconds
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.paired import blocks
from workbench.runner.experiments.paired.blocks import Contender
from workbench.runner.experiments.paired.interleaving import WARM_UP_S, Alternation
from workbench.runner.experiments.run import RunEnded
from workbench.runner.experiments.study_sender import Facts, StudySender
from workbench.runner.failures import Cancelled, Explained, Mistake, explain, is_fatal, name_outcome
from workbench.runner.interfaces import Situation
from workbench.runner.numerics import comparison

MOST_POINTS = 2000
BLOCKS = 10  # blocks of a point; long blocks depend little on each other
TRIES = 2  # if blocks are void, at most this many times ``BLOCKS`` are run

Cell = float | str | None
Kind = tuple[Scalar, ...]  # the arm of a point, and its value of each field that is no size


@dataclass
class Point:
    """One combination of values under one arm; ``mistake`` is why it cannot be used."""

    values: tuple[Scalar, ...]
    arm: int
    configuration: Configuration
    situation: Situation | None = None
    mistake: str = ""


class SweepRun:
    """Measures one point after another until all are done or a command ends it."""

    def __init__(self, context: RunnerContext, command: protocol.Sweep) -> None:
        self._context = context
        self._command = command
        self._fields = list(command.axes)
        self._arms = command.arms or [{}]
        self._points: TableColumns = {}  # the table so far
        self._smallest: dict[Kind, Point] = {}  # by kind, the point where the numbers are checked
        self._kinds: dict[Kind, Point] = {}  # by kind, one of its points
        self._checked: set[Kind] = set()
        self._before: Configuration | None = None
        self._mistake: protocol.Failure | None = None  # why the last refused build failed
        self._study = StudySender(context)
        # A point is alone in memory: a lack of memory is reported and not worked around.
        self._builder = Alternation(context, command.seconds, BLOCKS, _REFUSAL)
        self._builder.alone = True
        self.steps = 0

    def execute(self) -> None:
        """Sweep to the end; raises ``Cancelled``, ``RunEnded``, what is fatal, or a mistake.

        A mistake that only some points have is their outcome.
        """
        points = self._plan()
        self._announce(points)
        try:
            for index, point in enumerate(points):
                name = self._name(point)
                self._context.progress(
                    "sweep", index / len(points), f"{index + 1} of {len(points)}, {name}"
                )
                self._measure_point(point, name)
            if self._mistake is not None and {*self._points["outcome"]} == {sweep.REFUSED}:
                raise Explained(self._mistake)
            self._context.progress("sweep", 1.0, "")
        finally:
            self._context.watchdog.active = False
            self._report_unchecked()
            self._study.facts(final=True)

    # The request

    def _plan(self) -> list[Point]:
        """Return every point, in the order in which they are run.

        Raises ``Mistake`` or ``models.ConfigurationError``.
        """
        command = self._command
        check_seconds("seconds", command.seconds)
        if len(self._fields) not in (1, 2):
            raise Mistake(
                f"{len(self._fields)} fields were given, but a sweep has 1 or 2; give each field "
                "its values"
            )
        for field, values in command.axes.items():
            _check_axis(field, values)
            for value in values:  # a value that is never possible is a mistake, not a point
                check_choice(command.base, field, value)
        sizes = list(itertools.product(*command.axes.values()))
        count = len(sizes) * len(self._arms)
        if count > MOST_POINTS:
            raise Mistake(
                f"{count} points were requested, but at most {MOST_POINTS} are allowed; give fewer "
                "values or arms"
            )
        shuffled = random.Random(command.seed)
        axes = [*command.axes.values()]
        points = []
        for places in sweep.balanced_order([*map(len, axes)], shuffled):
            size = tuple(axis[index] for axis, index in zip(axes, places, strict=True))
            arms = list(enumerate(self._arms))
            shuffled.shuffle(arms)
            points += [self._point(size, arm, toggles) for arm, toggles in arms]
        if all(point.mistake for point in points):
            raise Mistake(points[0].mistake)
        report_left_out(self._context.wire, filter(None, (point.situation for point in points)))
        for point in sorted(points, key=self._size_of, reverse=True):
            if not point.mistake:
                self._smallest[self._kind(point)] = point
        return points

    def _kind(self, point: Point) -> Kind:
        """Return the key of points whose numbers are checked once."""
        return (point.arm, *self._distinguishing_values(point).values())

    def _distinguishing_values(self, point: Point) -> dict[str, Scalar]:
        """Return a point's values of fields that are not sizes, by the columns of the tables."""
        axes = zip("xy", self._command.axes.items(), point.values, strict=False)
        return {name: value for name, axis, value in axes if not _is_size(*axis)}

    def _size_of(self, point: Point) -> int:
        """Return a sort key, from small to large: the indices of its values in the request."""
        places = 0
        for values, value in zip(self._command.axes.values(), point.values, strict=True):
            numbers = all(map(sweep.is_number, values))
            places += (sorted(values, key=float) if numbers else values).index(value)
        return places

    def _point(self, values: tuple[Scalar, ...], arm: int, toggles: dict[str, str]) -> Point:
        configuration = self._command.base
        configuration = msgspec.structs.replace(
            configuration, toggles={**configuration.toggles, **toggles}
        )
        try:
            for field, value in zip(self._fields, values, strict=True):
                configuration = configuration.replaced(field, value)
        except ValueError as error:
            raise Mistake(str(error)) from None
        point = Point(values, arm, configuration)
        try:
            point.situation = resolve(configuration, self._context.device)
            require_unblocked(point.situation)
        except ValueError as error:
            point.mistake = str(error)
        return point

    def _announce(self, points: list[Point]) -> None:
        command, base = self._command, self._command.base
        axes = {f"values_{field}": values for field, values in enumerate(command.axes.values())}
        request: Facts = {
            "fields": [*self._fields],
            **axes,
            "arms": [*self._arm_names(points)],
            "toggles": [msgspec.json.encode(arm).decode() for arm in self._arms],
            "base": msgspec.json.encode(base).decode(),
            "seconds": command.seconds,
            "seed": command.seed,
            "points": len(points),
            "order": "sizes in random order, and the arms of each size in random order",
        }
        self._study.begin(sweep.KIND, f"{base.title} over {' and '.join(self._fields)}", request)
        on_gpu = self._context.device.type == "cuda"
        self._study.facts(
            clock="GPU" if on_gpu else "host",
            memory="allocated on the GPU" if on_gpu else "resident set of the process",
        )

    def _arm_names(self, points: list[Point]) -> list[str]:
        """Return the label of each arm, as for segments; numbered if two are equal."""
        names: list[str] = []
        for arm, toggles in enumerate(self._arms):
            known = [p.situation for p in points if p.arm == arm and p.situation is not None]
            name = (
                label(known[0].configuration, self._context.device)
                if known
                else ", ".join(f"{toggle}={option}" for toggle, option in toggles.items())
            )
            names.append(f"{name} ({arm + 1})" if name in names else name)
        return names

    def _name(self, point: Point) -> str:
        arm = f", arm {point.arm + 1}" if len(self._arms) > 1 else ""
        return f"{self._size(point)}{arm}"

    def _size(self, point: Point) -> str:
        pairs = zip(self._fields, point.values, strict=True)
        return ", ".join(f"{field.rpartition('.')[2]} {value}" for field, value in pairs)

    # Measuring

    def _measure_point(self, point: Point, name: str) -> None:
        """Measure a point; report its result, or why it could not be measured."""
        self._kinds.setdefault(self._kind(point), point)
        if point.situation is None or point.mistake:
            self._send_point(point, sweep.REFUSED, point.mistake)
            self._builder.handle_commands()
            return
        fatal: Exception | None = None
        try:
            self._measure(point, point.situation, name)
        except (Cancelled, RunEnded):
            raise
        except Exception as error:  # noqa: BLE001 - a model may raise anything: it is a point
            failure = explain(error)
            self._send_point(point, name_outcome(failure), failure.sentence)
            self._mistake = failure if failure.kind == "mistake" else self._mistake
            fatal = error if is_fatal(error) else None
        else:
            return
        # Outside of the except clause: its traceback would keep the tensors of what failed.
        if fatal is not None:
            raise fatal
        self._make_room(None)

    def _measure(self, point: Point, situation: Situation, name: str) -> None:
        context = self._context
        self._make_room(situation.configuration)
        contender = Contender(0, 0, situation, name)
        self._builder.begin(contender)
        arm = contender.variant
        assert arm is not None
        context.state("running", f"Warming up {name}")
        steady = self._warm_up(contender)
        evidence = arm.find_evidence()
        context.wire.send(protocol.EvidenceFound(segment=contender.segment, evidence=evidence))
        context.state("running", f"Measuring {name}")
        medians, voids, peak = self._run_blocks(contender)
        if point is self._smallest.get(self._kind(point)):
            self._check(point, contender, name)
        notes = [f"{counted(len(voids), 'void block')}: {voids[0]}"] if voids else []
        if not steady:
            notes.append(f"the steps were not yet steady after {WARM_UP_S:g} s")
        if contender.diverged:
            notes.append("its loss is not finite (NaN or infinite): its results mean nothing")
        if idle := [item.toggle for item in evidence if item.status == "no effect"]:
            notes.append(f"no effect: {', '.join(idle)}")
        typical = sweep.typical(medians)
        tokens = float(arm.ledger.get("tokens_per_step", math.nan))
        self._send_point(
            point,
            sweep.MEASURED if medians else sweep.VOID,
            "; ".join(notes),
            median_ms=typical.ms,
            low_ms=typical.low_ms,
            high_ms=typical.high_ms,
            error=typical.error,
            tokens_per_s=1e3 * tokens / typical.ms,
            peak_bytes=peak,
            blocks=len(medians),
        )

    def _check(self, point: Point, contender: Contender, name: str) -> None:
        """Compare the arm's numbers with a reference, once it was timed."""
        context = self._context
        context.state("running", f"Checking results of {name}")
        context.watchdog.active = False  # nothing steps meanwhile, which would count as a hang
        assert contender.variant is not None
        try:
            numerics = comparison.check(
                contender.variant, contender.situation, context.check_cancelled
            )
        except Cancelled:
            text = "not checked: cancelled"
            self._send_numbers(point, Numerics(reference="", ok=None, text=text))
            raise
        text = f"at {self._size(point)}: {numerics.text}"
        self._send_numbers(point, msgspec.structs.replace(numerics, text=text))

    def _report_unchecked(self) -> None:
        """Report "not checked" for arms whose smallest size was never measured."""
        for kind, point in sorted(self._kinds.items(), key=lambda item: item[1].arm):
            if kind not in self._checked:
                values = [str(value) for value in self._distinguishing_values(point).values()]
                at = f"at {', '.join(values)}: " if values else ""
                text = f"{at}not checked: its smallest size was not measured"
                self._send_numbers(point, Numerics(reference="", ok=None, text=text))

    def _warm_up(self, contender: Contender) -> bool:
        """Step until the phase is steady and adapting parts have settled; True if it is steady.

        The last block gives the step time.
        """
        context = self._context
        assert contender.variant is not None
        context.phases.restart()
        until = self._builder.now() + WARM_UP_S
        adapting = contender.variant.steps_to_settle()
        steps = 1
        while True:
            began = self._builder.now()
            block = blocks.run_block(context, dataclasses.replace(contender, steps=steps), 0)
            self._builder.handle_commands()
            if block is not None:
                self.steps += block.steps
                contender.step_ms = max(block.median_ms, 1e-3)
                if self._builder.now() - began < 0.1:
                    steps = blocks.LEAST_STEPS
                adapting -= block.steps
                if adapting > 0:
                    continue
                if context.phases.phase is Phase.STEADY:
                    return True
            if block is not None and self._builder.now() > until:
                return False

    def _run_blocks(self, contender: Contender) -> tuple[list[float], list[str], float]:
        """Run blocks for the time of a point.

        Return the medians of the blocks that count, why others do not, and the highest memory.
        """
        context, seconds = self._context, self._command.seconds
        share_ms = max(1e3 * seconds / BLOCKS, blocks.MIN_BLOCK_MS)
        contender.steps = max(1, math.ceil(share_ms / contender.step_ms))
        medians: list[float] = []
        voids: list[str] = []
        peaks: list[float] = []
        context.memory.new_phase()
        began = self._builder.now()
        while len(medians) + len(voids) < TRIES * BLOCKS:
            block = blocks.run_block(context, contender, len(medians) + len(voids) + 1)
            self._builder.handle_commands()
            if block is None:
                continue  # a command came in between
            self.steps += block.steps
            peaks.append(context.memory.sample().peak)
            contender.diverged |= block.diverged
            if block.void:
                voids.append(block.void)
            else:
                medians.append(block.median_ms)
            is_overdue = self._builder.now() - began > TRIES * seconds
            if len(medians) >= (sweep.LEAST_BLOCKS if is_overdue else BLOCKS):
                break
        return medians, voids, max(peaks)

    def _make_room(self, following: Configuration | None) -> None:
        """Free everything that the next point does not share; weights stay if only sizes differ."""
        before, self._before = self._before, following
        if before is not None and following is not None:
            before = msgspec.structs.replace(before, settings=following.settings)
        if following is not None and before == following:
            self._context.variants.forget_variants()
        else:
            self._context.variants.forget_all()

    # Sending

    def _send_point(
        self, point: Point, outcome: str, reason: str, blocks: int = 0, **measures: float
    ) -> None:
        """Send a point, and the exponents of all points."""
        row = _cells(dict(zip("xy", point.values, strict=False)))
        row |= {"arm": point.arm, "outcome": outcome, "reason": reason, "blocks": blocks}
        row |= {name: measures.get(name, math.nan) for name in _MEASURED}
        for name, cell in row.items():
            self._points.setdefault(name, []).append(cell)
        self._study.rows(sweep.POINTS, {name: [cell] for name, cell in row.items()})
        if fitted := sweep.fits(self._points):
            self._study.rows(sweep.FITS, fitted, replace=True)

    def _send_numbers(self, point: Point, numerics: Numerics) -> None:
        self._checked.add(self._kind(point))
        right = None if numerics.ok is None else float(numerics.ok)
        row: dict[str, Cell] = {"arm": point.arm, "right": right, "text": numerics.text}
        row |= _cells(self._distinguishing_values(point))
        self._study.rows(sweep.NUMBERS, {name: [cell] for name, cell in row.items()})


_REFUSAL = "A sweep is being measured; stop it before changing a toggle."
_MEASURED = ("median_ms", "low_ms", "high_ms", "error", "tokens_per_s", "peak_bytes")


def _cells(values: dict[str, Scalar]) -> dict[str, Cell]:
    """Return values of axes as tables hold them: numbers, or words."""
    return {
        name: float(value) if sweep.is_number(value) else str(value)
        for name, value in values.items()
    }


def _is_size(field: str, values: list[Scalar]) -> bool:
    """Return True if a field changes how much is computed, and not what: one check is enough."""
    if field.startswith(("model.", "settings.")):
        return all(map(sweep.is_number, values))
    return field in ("preset", "data")


def _check_axis(field: str, values: list[Scalar]) -> None:
    if not values:
        raise Mistake(f"{field}: no values were given to sweep over; give at least one")
    if len(set(values)) < len(values):
        raise Mistake(f"{field}: {values} contains a value twice; give each value once")
    if len({sweep.is_number(value) for value in values}) > 1:
        raise Mistake(f"{field}: {values} mixes numbers and words; give values of one kind")
    if not all(math.isfinite(float(value)) for value in values if sweep.is_number(value)):
        raise Mistake(f"{field}: {values} contains a number that is not finite; leave it out")
