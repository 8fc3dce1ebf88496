"""Background pairing: a run returns to its baseline in short blocks, for a small part of its time.

Steps before and after a change of a toggle differ in clock, temperature and load, so their ratio
says little. A block of the baseline next to a block of the present configuration, in random order,
has the same conditions. One such pair now and then makes the ratio in the table a paired one while
the run continues. Blocks are judged like those of a comparison.

Both arms train the same weights, as in a comparison: a block of the baseline adds some steps.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

import msgspec

from sessions.ceilings import limit_ms
from sessions.model import Configuration, Numerics, Phase, Scalar
from sessions.verdicts import verdict
from sessions.verdicts.background import BACKGROUND
from sessions.verdicts.statistics import MIN_BLOCK_MS, MIN_BLOCK_STEPS
from workbench import protocol
from workbench.runner.building.labels import title
from workbench.runner.config.model_digest import difference_of_situations
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.paired import blocks
from workbench.runner.experiments.paired.blocks import LEAST_STEPS, Contender
from workbench.runner.failures import explain, is_fatal
from workbench.runner.instruments.memory import free_memory
from workbench.runner.instruments.timing import Lap
from workbench.runner.interfaces import Situation
from workbench.runner.variants.steady_segment import SteadySegment
from workbench.runner.variants.variant import Variant

FIRST_S = 0.5  # steady steps before the first pair
LONGEST_MS = 500.0  # longest block, unless its fewest steps take longer
ONE_BUILD = "the blocks ran during a run, which builds each configuration only once"


class Pairing:
    """Runs the pairs of one run: ``share`` of the time at most goes to the baseline's blocks."""

    def __init__(self, context: RunnerContext, start: protocol.Start) -> None:
        self._context, self._start = context, start
        # With a number of steps or a decode state, only the configuration's own steps may run.
        exact = start.steps is not None or start.load_state or start.save_state
        self._share = 0.0 if exact else start.pairing_share
        self._random = random.Random(start.configuration.seed)
        self._baseline: SteadySegment | None = None
        self._segment: SteadySegment | None = None
        self._contenders: list[Contender] = []  # baseline and present one, while they are paired
        self._checked: dict[int, Numerics] = {}  # results of their checks that were sent
        self._index = -1  # index of the comparison
        self._blocks: list[protocol.Block] = []
        self._began = self._due = 0.0  # times of ``time.perf_counter``
        if start.baseline is not None:
            self.choose(start.baseline)

    def begin(self, situation: Situation, segment: int) -> None:
        """Pair another segment of the run; its first pair runs once it is steady."""
        self._segment = SteadySegment(situation, segment)
        self._due = math.inf if self._share == 0 else 0.0

    def choose(self, configuration: Configuration) -> None:
        """Set another baseline, which has already run in this runner, from the next change on."""
        if _without_toggles(configuration) == _without_toggles(self._start.configuration):
            segment = self._context.steady.get(msgspec.json.encode(configuration))
            self._baseline = segment or self._baseline

    def see(self, laps: Sequence[Lap]) -> None:
        """Record the present segment's last steps: their duration, and that they are steady."""
        segment = self._segment
        if segment is None or not laps or laps[-1].phase != Phase.STEADY:
            return
        was_steady, segment.step_ms = not math.isnan(segment.step_ms), laps[-1].step_ms
        if self._share and not was_steady:
            self._context.steady[msgspec.json.encode(segment.situation.configuration)] = segment
            self._baseline = self._baseline or segment

    def due(self) -> bool:
        """Return True if a pair should run between two steps."""
        if self._due == math.inf or self._segment is None or math.isnan(self._segment.step_ms):
            return False
        now = time.perf_counter()
        if not self._due:
            self._due = now + FIRST_S
        return now >= self._due and self._context.phases.phase is Phase.STEADY

    def run(self, arm: Variant) -> int:
        """Run a pair; ``arm`` is the present one, not entered. Return how many steps it made.

        What fails ends the pairing: the run goes on without, and says so once.
        """
        if not self._contenders and not self._start_pairs(arm):
            self._due = math.inf
            return 0
        began, own_steps, own_s = time.perf_counter(), 0, 0.0
        pair = 1 + max((block.pair for block in self._blocks), default=-1)
        order = list(self._contenders)
        self._random.shuffle(order)
        try:
            for contender in order:
                since = time.perf_counter()
                timed_block = blocks.run_block(
                    self._context, contender, self._context.paired_blocks + 1
                )
                if timed_block is None:
                    return own_steps  # a command waits
                self._context.paired_blocks += 1
                if contender.number == 1:
                    own_steps, own_s = timed_block.steps, time.perf_counter() - since
                self._keep(blocks.message_of(timed_block, contender.number, pair))
        except Exception as error:
            if is_fatal(error):
                raise
            failure = explain(error)
        else:
            spent_s = time.perf_counter() - began - own_s
            self._due = time.perf_counter() + spent_s * (1 / self._share - 1)
            if verdict.is_look(pair + 1) and self._judge():
                self.end()
            return own_steps
        # Outside of the except clause: its traceback would keep the tensors of the failed step.
        self._context.clock.drain(wait=True)
        self._context.note("info", f"background pairing ended: {failure.sentence}")
        self.end()
        free_memory()
        return own_steps

    def end(self) -> None:
        """End the comparison with the present pairs, until another segment begins."""
        self._due = math.inf
        if self._contenders:
            self._judge(final=True)
            self._contenders = []

    def _start_pairs(self, arm: Variant) -> bool:
        """Begin a comparison with the baseline, if there is another one that is still built."""
        context, base, present = self._context, self._baseline, self._segment
        assert base is not None and present is not None
        a, b = base.situation.configuration, present.situation.configuration
        if (
            a == b
            or difference_of_situations(base.situation, present.situation)[0]
            or arm.divided is not None
        ):
            return False  # itself, another model, or ranks that would have to follow
        if not context.variants.has(base.situation):
            context.note("info", "no background pairing: the baseline is no longer in memory")
            return False
        with context.unwatched():
            verdict.load()
        first = context.variants.get(base.situation, context.phases)
        context.variants.get(present.situation, context.phases)  # the last to be freed
        titles = title(a, b, context.device), title(b, a, context.device)
        self._contenders = [
            _contender(number, segment, built, titles[number])
            for number, (segment, built) in enumerate(((base, first), (present, arm)))
        ]
        for contender, built in zip(self._contenders, (first, arm), strict=True):
            contender.least_ms = limit_ms(context.facts_of(built, contender.segment))
        self._blocks, self._checked, self._began = [], {}, time.perf_counter()
        self._index, context.comparisons = context.comparisons, context.comparisons + 1
        facts: dict[str, Scalar] = {
            BACKGROUND: True,
            "share": self._share,
            "region": verdict.REGION,
            "floor": self._start.floor,
            "floor_note": self._start.floor_note,
            "half_width": verdict.HALF_WIDTH,
            "order": "random",
            "one_build": ONE_BUILD,
        }
        context.wire.send(
            protocol.ComparisonStarted(
                index=self._index,
                arms=list(titles),
                segments=[base.index, present.index],
                request=facts,
            )
        )
        return True

    def _keep(self, block: protocol.Block) -> None:
        self._blocks.append(block)
        self._context.wire.send(protocol.BlockDone(comparison=self._index, block=block))

    def _judge(self, final: bool = False) -> bool:
        """Send the judgement of the pairs so far; return True if more pairs would not change it."""
        context, seconds = self._context, time.perf_counter() - self._began
        for arm, contender in enumerate(self._contenders):
            known = context.variants.numbers_of(contender.situation)
            if known is not None and self._checked.get(arm) != known:
                self._checked[arm] = known
                context.wire.send(
                    protocol.NumericsChecked(comparison=self._index, arm=arm, numerics=known)
                )
        judgement = verdict.judge(
            blocks.comparison_of(self._blocks), floor=self._start.floor, seconds=seconds
        )
        if why := blocks.impossible_arm(self._contenders, self._blocks):
            judgement = verdict.invalidated(judgement, why)
        context.wire.send(
            protocol.Judged(
                comparison=self._index, judgement=judgement, seconds=seconds, final=final
            )
        )
        return judgement.settled and judgement.verdict != "UNDECIDED"


def _without_toggles(configuration: Configuration) -> Configuration:
    return msgspec.structs.replace(configuration, toggles={})


def _contender(number: int, segment: SteadySegment, arm: Variant, name: str) -> Contender:
    """Return the side of a pair, whose blocks are short."""
    steps = max(MIN_BLOCK_STEPS, math.ceil(MIN_BLOCK_MS / segment.step_ms))
    return Contender(
        number=number,
        copy=0,
        situation=segment.situation,
        name="AB"[number],
        title=name,
        segment=segment.index,
        variant=arm,
        step_ms=segment.step_ms,
        steps=max(LEAST_STEPS, min(steps, int(LONGEST_MS / segment.step_ms))),
    )
