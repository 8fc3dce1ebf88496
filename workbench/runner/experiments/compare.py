"""A run that compares two configurations: two warm arms, alternating block by block.

The verdict so far is sent after each pair, so that a stop or a kill keeps what was
measured. Where building is cheap, both arms are built again several times on the way.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from sessions.model import (
    Configuration,
    EnergyPairs,
    Judgement,
    Numerics,
    Prediction,
    Scalar,
)
from sessions.numbers import counted
from sessions.verdicts import verdict
from workbench import protocol
from workbench.runner.building.labels import title
from workbench.runner.config.model_digest import difference_of_situations
from workbench.runner.config.values import check_comparison
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.paired import blocks, rebuilding
from workbench.runner.experiments.paired.blocks import Contender, TimedBlock
from workbench.runner.experiments.paired.energy_pairs import measure_energy
from workbench.runner.experiments.paired.interleaving import Alternation
from workbench.runner.experiments.run import RunEnded
from workbench.runner.experiments.study_sender import verdict_facts
from workbench.runner.failures import Cancelled, Mistake, explain, is_fatal
from workbench.runner.suggested_fixes import slower_when_switched_on

ORDERS = ("random", "abba")
HOPELESS_PAIRS = 8  # pairs given up in a row, without one complete pair, that end the comparison


def _is_clear(judgement: Judgement) -> bool:
    return judgement.verdict != "UNDECIDED"


class CompareRun:
    """Alternates two arms until the verdict is settled, time is spent, or a command ends it.

    ``decides``: whether a judgement answers what is asked. Until one does it goes on, however
    narrow the interval is. ``base_numerics``: what a check of the base showed in an earlier
    comparison; None: the base is checked.
    """

    def __init__(
        self,
        context: RunnerContext,
        command: protocol.Compare,
        decides: Callable[[Judgement], bool] = _is_clear,
        base_numerics: Numerics | None = None,
    ) -> None:
        self._context = context
        self._command = command
        self._decides = decides
        self._base_numerics = base_numerics
        self._random = random.Random(command.seed)
        self._index = -1
        self.blocks = list(command.before)
        self._alternation = Alternation(
            context,
            command.budget_s,
            2 * verdict.MIN_PAIRS,
            "Two configurations are being compared; stop before changing one.",
            len(self.blocks),
        )
        self._alternation.when_alone = self._send_rebuilding
        self._began = self._ended = 0.0  # times of the alternation's clock
        self._began_ns = 0
        self.judgement: Judgement | None = None  # the judgement of the pairs so far
        self.numerics: list[Numerics] = []  # results of the arms that were checked
        self._prediction: Prediction | None = None
        self._plan = rebuilding.Plan()
        self._build = max((block.build for block in self.blocks), default=0)

    @property
    def steps(self) -> int:
        """Steps so far."""
        return self._alternation.steps

    @property
    def configuration(self) -> Configuration:
        """The configuration to change if the comparison fails."""
        return self._command.other

    @property
    def contenders(self) -> list[Contender]:
        """Return both sides; their measurements stay after the end."""
        return self._alternation.contenders

    @property
    def interval(self) -> verdict.Interval:
        """The interval of the log ratio, as the judgement has it."""
        pairs = verdict.pairs(blocks.comparison_of(self.blocks))
        return verdict.interval(pairs.logs, builds=pairs.builds, least=self._plan.least)

    @property
    def seconds(self) -> float:
        """Return the seconds that the pairs took so far."""
        if not self._began:
            return self._command.before_s
        return self._command.before_s + (self._ended or self._alternation.now()) - self._began

    def execute(self) -> None:
        """Compare to the end; raises ``Mistake``, ``Cancelled``, ``RunEnded`` or what failed."""
        self._prepare()
        self._predict()
        try:
            for contender in self._alternation.contenders:
                self._alternation.begin(contender)
            self._announce()
            for contender in self._alternation.contenders:
                self._look_at(contender)
            self._alternation.build_freed()
            self._measure()
            self._ended = self._alternation.now()
            self._measure_energy()
        finally:
            self._ended = self._ended or self._alternation.now()
            self._context.watchdog.active = False
            if self._index >= 0:
                self._judge(final=True)

    def _prepare(self) -> None:
        command, context = self._command, self._context
        check_comparison(command)
        if command.order not in ORDERS:
            raise Mistake(f"order: unknown {command.order!r}; expected one of {', '.join(ORDERS)}")
        if command.build_count < 0 or command.build_count == 2:
            raise Mistake(
                f"build_count = {command.build_count}: expected 1 (build once), at least "
                f"{verdict.LEAST_BUILDS} (two do not show how far builds differ), or 0 (automatic)"
            )
        situations = context.resolve(command.base, command.other)
        kind, fields = difference_of_situations(*situations)
        if kind and command.require_same_work:
            raise Mistake(
                f"A and B are {kind} ({', '.join(fields)}), so the ratio of their step times is no "
                "speed-up; compare two configurations of one model, or leave --expect out"
            )
        a, b = (situation.configuration for situation in situations)
        titles = title(a, b, context.device), title(b, a, context.device)
        self._alternation.contenders = [
            Contender(number, number if a == b else 0, situation, "AB"[number], titles[number])
            for number, situation in enumerate(situations)
        ]
        context.variants.keep_only(*situations)
        warm = all(context.variants.has(c.situation, c.copy) for c in self._alternation.contenders)
        if self.blocks and not warm:  # the blocks ran in a build that was released
            self._build += 1

    def _predict(self) -> None:
        """Predict before anything is built: a prediction must not know what is measured."""
        if self._command.predict:
            self._context.state("building", "Predicting from the roofline")
            a, b = (contender.situation.configuration for contender in self._alternation.contenders)
            self._prediction = self._context.predictor.of(a, b)

    def _announce(self) -> None:
        context, command = self._context, self._command
        contenders = self._alternation.contenders
        self._index, context.comparisons = context.comparisons, context.comparisons + 1
        context.wire.send(
            protocol.ComparisonStarted(
                index=self._index,
                arms=[contender.title for contender in contenders],
                segments=[contender.segment for contender in contenders],
                request={
                    **verdict_facts(command),
                    "order": command.order,
                    "identical": contenders[1].copy == 1,
                    "build_count": command.build_count,
                    **self._alternation.rebuilding(),
                },
                before=command.before,
                prediction=self._prediction,
            )
        )

    def _send_rebuilding(self) -> None:
        """Send whether arms are rebuilt: memory may run out long after the announcement."""
        if self._index >= 0:
            facts = self._alternation.rebuilding()
            self._context.wire.send(protocol.ComparisonFacts(comparison=self._index, facts=facts))

    def _look_at(self, contender: Contender) -> None:
        """Warm up, collect evidence, check the numbers."""
        self._alternation.settle(contender)
        known = None if contender.number else self._base_numerics
        numerics = self._alternation.check(contender, known)
        self.numerics.append(numerics)
        self._context.wire.send(
            protocol.NumericsChecked(
                comparison=self._index, arm=contender.number, numerics=numerics
            )
        )

    def _measure(self) -> None:
        context, command = self._context, self._command
        first = 1 + max((block.pair for block in self.blocks), default=-1)
        complete = given_up = 0
        verdict.load()
        self._plan_builds()
        context.state("running", "Alternating A and B")
        self._began, self._began_ns = self._alternation.now(), time.perf_counter_ns()
        build_since, in_build = self._began, 0
        for pair in range(first, first + 1_000_000):
            if in_build >= rebuilding.PAIRS and self._should_rebuild(build_since):
                self._rebuild()
                build_since, in_build = self._alternation.now(), 0
            turned = (
                bool(self._random.getrandbits(1)) if command.order == "random" else pair % 2 == 1
            )
            if self._pair(pair, turned):
                complete += 1
                in_build += 1
            else:
                given_up += 1
            spent_s = self._alternation.now() - self._began
            if complete and verdict.is_look(complete):
                self._judge()
            self._send_progress(spent_s / command.budget_s)
            judgement = self.judgement
            enough = judgement is not None and judgement.settled and self._decides(judgement)
            if (
                enough
                or spent_s >= command.budget_s
                or (given_up >= HOPELESS_PAIRS and not complete)
            ):
                return

    def _measure_energy(self) -> None:
        """Send the energy of both arms; a failure does not change the verdict."""
        if not self._command.energy:
            return
        budget_s = self._command.budget_s / 2
        try:
            energy = measure_energy(self._context, self._alternation, budget_s, self._random)
        except Exception as error:
            if isinstance(error, (Cancelled, RunEnded)) or is_fatal(error):
                raise
            energy = EnergyPairs(why_not=explain(error).sentence)
        self._context.wire.send(protocol.EnergyMeasured(comparison=self._index, energy=energy))

    def _plan_builds(self) -> None:
        """Decide how often both arms are built; report the reason if that is once."""
        alternation, command = self._alternation, self._command
        if not alternation.alone and rebuilding.is_worth_a_trial(
            alternation.contenders, command.build_count, command.budget_s
        ):
            # The first build also filled caches, and the warm-up waited for the clock. A second
            # build shows how long building again takes.
            self._context.state("building", "Building A and B again")
            alternation.rebuild(self._random)
        if alternation.alone:
            self._plan = rebuilding.Plan()  # each pair has a build of its own
        else:
            before = len({block.build for block in command.before})
            self._plan = rebuilding.plan_for(
                alternation.contenders, command.build_count, command.budget_s, before
            )
        facts: dict[str, Scalar] = {"one_build": self._plan.why}
        self._context.wire.send(protocol.ComparisonFacts(comparison=self._index, facts=facts))

    def _should_rebuild(self, since: float) -> bool:
        """Return True if this build was measured long enough and another one can be made."""
        now, alternation = self._alternation.now(), self._alternation
        slice_s = self._plan.seconds(now - self._began)
        if alternation.alone or now - since < slice_s:
            return False
        rebuild_s = sum(map(rebuilding.rebuild_seconds, alternation.contenders))
        ends = self._began + self._command.budget_s
        return now + rebuild_s + slice_s / 2 < ends

    def _rebuild(self) -> None:
        self._context.state("building", "Building A and B again")
        self._alternation.rebuild(self._random)
        self._build += 1
        self._context.state("running", "Alternating A and B")

    def _pair(self, pair: int, turned: bool) -> bool:
        """Run both blocks of a pair and repeat void ones. Return True if both count."""
        contenders = self._alternation.contenders
        return all(
            self._block(contender, pair)
            for contender in (reversed(contenders) if turned else contenders)
        )

    def _block(self, contender: Contender, pair: int) -> bool:
        def keep(timed_block: TimedBlock) -> None:
            build = pair if self._alternation.alone else self._build
            block = blocks.message_of(timed_block, contender.number, pair, build)
            self.blocks.append(block)
            self._context.wire.send(protocol.BlockDone(comparison=self._index, block=block))

        return self._alternation.block(contender, keep)

    def _judge(self, final: bool = False) -> None:
        command, seconds = self._command, self.seconds
        self.judgement = verdict.judge(
            blocks.comparison_of(self.blocks),
            region=command.region,
            floor=command.floor,
            half_width=command.half_width,
            seconds=seconds,
            least_builds=self._plan.least,
        )
        if why := blocks.impossible_arm(self._alternation.contenders, self.blocks):
            self.judgement = verdict.invalidated(self.judgement, why)
        if final and (disturbance := self._others()):
            facts: dict[str, Scalar] = {"others": disturbance}
            self._context.wire.send(protocol.ComparisonFacts(comparison=self._index, facts=facts))
        self._context.wire.send(
            protocol.Judged(
                comparison=self._index, judgement=self.judgement, seconds=seconds, final=final
            )
        )
        advice = slower_when_switched_on(command.base, command.other, self.judgement)
        if final and advice is not None:
            self._context.wire.send(advice)

    def _others(self) -> str:
        """Report who else used the CPU: others always run there, so no block is void for it."""
        context = self._context
        if context.device.type == "cuda" or not self._began:
            return ""
        return context.disturbance(self._began_ns, time.perf_counter_ns())

    def _send_progress(self, fraction: float) -> None:
        judgement = self.judgement
        text = (
            "" if judgement is None else f"{counted(judgement.pairs, 'pair')}, {judgement.verdict}"
        )
        self._context.progress("alternating", min(1.0, fraction), text)
