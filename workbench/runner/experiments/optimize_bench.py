"""The bench of an optimization: builds, runs and checks its candidates on the runner's device."""

from __future__ import annotations

import dataclasses
import functools
import gc
import math
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from models import ConfigurationError
from sessions.ceilings import impossible
from sessions.model import Configuration, Numerics
from sessions.studies.optimization.space import (
    BATCH,
    ENERGY,
    Built,
    Candidate,
    Dimension,
    Failure,
    Measurement,
    Point,
)
from sessions.studies.sweep import FAILED
from workbench import protocol
from workbench.runner.config.availability import blocked_options, require_unblocked
from workbench.runner.config.resolve import resolve
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.paired import blocks
from workbench.runner.experiments.paired.blocks import Contender, TimedBlock, settling_steps
from workbench.runner.experiments.paired.interleaving import WARM_UP_S, Alternation
from workbench.runner.experiments.run import RunEnded
from workbench.runner.failures import Cancelled, Mistake, explain, is_fatal, name_outcome
from workbench.runner.instruments.energy import EnergyCounter
from workbench.runner.instruments.launch_waits import waiting_share
from workbench.runner.instruments.memory import free_memory
from workbench.runner.interfaces import Situation, Trait
from workbench.runner.numerics.shared_reference import SharedReference
from workbench.runner.toggles._ranks import layout_of

BUSY = "An optimization is being measured; stop it before changing a toggle."
ROUNDS = 16  # rounds of 5 blocks that a tenth of the budget should hold
WARM_UP_SHARE = 1 / 60  # largest share of the budget to wait until a candidate is steady
# A block of this length needs no more steps. A pair of blocks of one step each is a valid pair, and
# a race of five configurations takes 50 steps and not 175.
LONG_MS = 500.0
ENERGY_MS = 500.0  # least block whose energy decides: the counter is updated every 20 to 100 ms
LEAST_LAGS = 2.5  # updates of the counter in such a block: as long as ``ENERGY_MS``

Result = TypeVar("Result")


class RunnerBench:
    """Implements ``sessions.studies.optimization.search.Bench`` with warm arms that take turns."""

    def __init__(
        self,
        context: RunnerContext,
        base: Situation,
        dimensions: Sequence[Dimension],
        objective: str,
        budget_s: float,
        seed: int,
    ) -> None:
        self._context, self._base, self._dimensions = context, base, dimensions
        self._objective = objective
        self._random = random.Random(seed)
        self._contenders: dict[int, Contender] = {}
        self._usable: dict[Point, tuple[Point | None, str]] = {}
        self.energy = EnergyCounter(context.device)
        self._step_joules = math.nan  # energy of a step in the latest block
        self.failure: protocol.Failure | None = None  # failure of the latest candidate that failed
        # Shares of the candidates' steps in which the GPU waits for launches, by number.
        self._waiting: dict[int, float] = {}
        self.alternation = Alternation(context, budget_s / 10, ROUNDS, BUSY)
        self.alternation.long_ms = LONG_MS
        self.alternation.shared = SharedReference()
        self.alternation.warm_up_s = min(WARM_UP_S, WARM_UP_SHARE * budget_s)
        # Called with each block, also with one that is void.
        self.on_block: Callable[[Candidate, TimedBlock, float], None] = lambda *_: None

    def now(self) -> float:
        """Return the seconds of a clock that stops during a pause."""
        return self.alternation.now()

    def situation(self, point: Point) -> Situation:
        """Return the situation of a point; raises ``Mistake`` or ``ConfigurationError``."""
        situation = resolve(self._configuration(point), self._context.device)
        require_unblocked(situation)
        return situation

    def usable(self, point: Point) -> tuple[Point | None, str]:
        """Return the point, with the options that it needs; None and why if it cannot be used."""
        if point not in self._usable:
            self.alternation.handle_commands()
            self._usable[point] = self._find_usable(point)
        return self._usable[point]

    def saved_waits(self, point: Point, best: Candidate) -> float:
        """Return the log ratio of step time to the best's if the GPU waits for no launches.

        NaN if the point's steps are not captured, if the best's are, or if no wait was seen.
        """
        contender = self._contenders[best.number]
        captures = self.situation(point).has(Trait.CAPTURED)
        if not captures or contender.situation.has(Trait.CAPTURED):
            return math.nan
        if best.number not in self._waiting:
            self._waiting[best.number] = self._waiting_share(contender)
        waiting, scale = self._waiting[best.number], self._scale(point) / self._scale(best.point)
        return math.log((1 - waiting) * scale) if waiting > 0 else math.nan

    def predict(self, point: Point) -> float:
        """Return the log ratio of step time to the base's by the roofline; NaN without one."""
        self.alternation.handle_commands()
        if self._context.roof.measured is None:  # measuring it takes longer than it saves
            return math.nan
        with self._context.unwatched():
            ratio = self._context.predictor.of(
                self._base.configuration, self._configuration(point)
            ).ratio
        return math.nan if not ratio else math.log(ratio * self._scale(point))

    def compiles(self, point: Point) -> bool:
        """Return True if building the point compiles its step, which takes long."""
        return self.situation(point).has(Trait.COMPILED)

    def build(self, candidate: Candidate) -> Built | Failure:
        """Build and warm up a candidate, unless it is ready; at first, look for its evidence."""
        contender = self._contenders.get(candidate.number)
        if contender is not None and contender.variant is not None:
            evidence = contender.variant.find_evidence()
            return Built(0.0, evidence=evidence, block_s=_block_s(contender))
        began = self.now()
        if contender is None:
            contender = self._contender(candidate)
            act = functools.partial(self._begin, contender)
        else:
            act = functools.partial(self._build_again, contender)
        peak_bytes = self._guard(contender, act)
        if isinstance(peak_bytes, Failure):
            return peak_bytes
        assert contender.variant is not None
        evidence = contender.variant.find_evidence()
        return Built(self.now() - began, peak_bytes, evidence, _block_s(contender))

    def release(self, candidate: Candidate) -> None:
        """Allow the candidate's arm to be freed if memory is short."""
        contender = self._contenders.get(candidate.number)
        if contender is not None:
            contender.variant = None
            self._leave(contender)
        self.alternation.alone = False

    def round(self, candidates: Sequence[Candidate]) -> dict[int, Measurement | Failure]:
        """Run a block of each candidate in random order; a void block has no entry."""
        order = list(candidates)
        self._random.shuffle(order)
        measured = {candidate.number: self._block(candidate) for candidate in order}
        return {number: block for number, block in measured.items() if block is not None}

    def rebuild(self, candidates: Sequence[Candidate]) -> None:
        """Build candidates again, at other addresses; a failure is reported by the next block."""
        contenders = [self._contenders[candidate.number] for candidate in candidates]
        for contender in contenders:
            self._join(contender)
        try:
            self.alternation.rebuild(self._random, contenders)
        except Exception as error:
            if isinstance(error, (Cancelled, RunEnded)) or is_fatal(error):
                raise

    def check(self, candidate: Candidate) -> Numerics | Failure:
        """Compare the numbers of a candidate with a reference."""
        contender = self._contenders[candidate.number]
        return self._guard(contender, lambda: self.alternation.check(contender))

    def _configuration(self, point: Point) -> Configuration:
        toggles = {d.name: option for d, option in zip(self._dimensions, point, strict=True)}
        base = self._base.configuration
        batch = toggles.pop(BATCH, None)
        settings = base.settings if batch is None else {**base.settings, "batch": int(batch)}
        return msgspec.structs.replace(base, toggles={**base.toggles, **toggles}, settings=settings)

    def _scale(self, point: Point) -> float:
        """Return the factor that scales a step's time or energy to the base's number of samples."""
        batches = (
            int(base.settings["batch"])
            for base in (self._base.configuration, self._configuration(point))
        )
        return next(batches) / next(batches)

    def _find_usable(self, point: Point) -> tuple[Point | None, str]:
        """Return the point with the options that a blocked one needs, or why they do not help."""
        try:
            self.situation(point)
        except (Mistake, ConfigurationError) as error:
            reason = str(error)
        else:
            return point, ""
        try:
            blocked = blocked_options(resolve(self._configuration(point), self._context.device))
        except (Mistake, ConfigurationError):
            return None, reason
        needed: dict[str, str] = {}
        for dimension, option in zip(self._dimensions, point, strict=True):
            if why := blocked.get(dimension.name, {}).get(option):
                reason = why.reason
                needed |= why.set
        options = {dimension.name: dimension.options for dimension in self._dimensions}
        if any(option not in options.get(name, ()) for name, option in needed.items()):
            return None, reason
        with_needs = tuple(
            needed.get(dimension.name, option)
            for dimension, option in zip(self._dimensions, point, strict=True)
        )
        try:
            self.situation(with_needs)
        except (Mistake, ConfigurationError):
            return None, reason
        return with_needs, reason

    def _contender(self, candidate: Candidate) -> Contender:
        situation = self.situation(candidate.point)
        name = f"configuration {candidate.number}"
        contender = Contender(candidate.number, 0, situation, name, candidate.title)
        self._contenders[candidate.number] = contender
        return contender

    def _begin(self, contender: Contender) -> float:
        """Build a candidate for the first time; return its peak memory, NaN if not counted."""
        alternation = self.alternation
        self._join(contender)
        alternation.begin(contender)
        alternation.settle(contender)
        self._lengthen(contender)
        return self._peak(contender)

    def _build_again(self, contender: Contender) -> float:
        alternation = self.alternation
        self._join(contender)
        self._context.state("building", f"Building {contender.name}")
        alternation.build(contender)
        self._context.state("running", f"Warming up {contender.name}")
        alternation.warm_up(contender)
        alternation.set_steps(contender)
        self._lengthen(contender)
        return math.nan

    def _waiting_share(self, contender: Contender) -> float:
        variant, context = contender.variant, self._context
        if variant is None or context.device.type != "cuda" or variant.divided is not None:
            return math.nan

        def step() -> None:
            variant.ready()
            variant.step()

        with context.unwatched(), variant.entered():
            return waiting_share(step, contender.step_ms)

    def _lengthen(self, contender: Contender) -> None:
        if self._objective == ENERGY:
            steps = math.ceil(ENERGY_MS / contender.step_ms)
            contender.steps = max(contender.steps, steps)

    def _peak(self, contender: Contender) -> float:
        """Return the peak memory of a few steps, without the memory of other candidates."""
        context = self._context
        if context.device.type != "cuda":
            return math.nan
        context.memory.new_phase()
        blocks.warm_up_block(context, contender)
        self.alternation.handle_commands()
        memory = context.memory.sample()
        peaks = [memory.peak - memory.others_bytes]
        assert contender.variant is not None
        if contender.variant.divided is not None:
            peaks += contender.variant.divided.peaks[1:]
        return max(peaks)

    def _block(self, candidate: Candidate) -> Measurement | Failure | None:
        contender = self._contenders[candidate.number]
        self._join(contender)
        measured: list[Measurement] = []

        def keep(timed_block: TimedBlock) -> None:
            joules = self._step_joules
            self.on_block(candidate, timed_block, joules)
            candidate.void = timed_block.void
            if not timed_block.void:
                clock_mhz = math.nan if timed_block.clock_mhz is None else timed_block.clock_mhz
                measured.append(
                    Measurement(timed_block.median_ms, timed_block.mean_ms, clock_mhz, joules)
                )

        failure = self._guard(
            contender, lambda: self.alternation.block(contender, keep, self._metered)
        )
        if isinstance(failure, Failure):
            return failure
        if not measured:
            return None
        device_type = self._context.device.type
        if why := impossible(measured[-1].median_ms, contender.least_ms, device_type):
            return Failure(FAILED, why)
        block, scale = measured[-1], self._scale(candidate.point)
        return Measurement(
            block.median_ms * scale, block.mean_ms * scale, block.clock_mhz, block.joules * scale
        )

    def _metered(
        self, context: RunnerContext, contender: Contender, number: int
    ) -> TimedBlock | None:
        """Run a block, and count the energy of its steps if the counter can resolve the block.

        The counter of a GPU lags behind. Without steps that let it catch up, a part of the energy
        is that of the candidate before, and ratios are too near to 1.
        """
        self._step_joules, lag_ms = math.nan, 1000 * self.energy.lag_s
        if contender.steps * contender.step_ms < LEAST_LAGS * lag_ms:
            return blocks.run_block(context, contender, number)
        if lag_ms:
            steps = math.ceil(lag_ms / contender.step_ms)
            if blocks.run_block(context, dataclasses.replace(contender, steps=steps), 0) is None:
                return None
        ranks = layout_of(contender.situation).ranks
        counter = self.energy if ranks == 1 else EnergyCounter(context.device, ranks)
        before_j = counter.joules()
        block = blocks.run_block(context, contender, number)
        if block is not None:
            joules = counter.joules() - before_j
            self._step_joules = joules / (block.steps + settling_steps(contender.steps))
        return block

    def _guard(self, contender: Contender, act: Callable[[], Result]) -> Result | Failure:
        """Call ``act`` for a candidate; return a failure or a lack of memory as a result."""
        try:
            return act()
        except Exception as error:
            if isinstance(error, (Cancelled, RunEnded)) or is_fatal(error):
                raise
            failure = explain(error)
        self.failure = failure
        # Outside of the except clause: its traceback would keep the tensors of the failed build.
        state = name_outcome(failure)
        contender.variant = None
        self._context.variants.forget(contender.situation, contender.copy)
        self._leave(contender)
        self.alternation.alone = False
        gc.collect()
        free_memory()
        text = f"{contender.name} ({contender.title}): {state}: {failure.sentence}"
        self._context.note("warning", text)
        return Failure(state, failure.sentence)

    def _join(self, contender: Contender) -> None:
        if contender not in self.alternation.contenders:
            self.alternation.contenders.append(contender)

    def _leave(self, contender: Contender) -> None:
        if contender in self.alternation.contenders:
            self.alternation.contenders.remove(contender)


def _block_s(contender: Contender) -> float:
    """Return the seconds that a block of a contender takes."""
    steps = contender.steps + settling_steps(contender.steps)
    return steps * contender.step_ms / 1000
