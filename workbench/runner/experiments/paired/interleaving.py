"""Warm arms that take turns on one device, block by block.

Each arm is built, its evidence is collected, its results are checked against a reference, and it is
warmed up. If the arms do not fit in memory together, each block builds its arm again. Commands are
handled between blocks.
"""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Callable, Sequence

from sessions import numerics as checked
from sessions.ceilings import limit_ms
from sessions.model import Numerics, Phase, Scalar
from workbench import protocol
from workbench.runner import suggested_fixes
from workbench.runner.building.labels import label
from workbench.runner.config.model_digest import model_facts
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.paired import blocks, rebuilding
from workbench.runner.experiments.paired.blocks import Contender, TimedBlock
from workbench.runner.experiments.run import RunEnded
from workbench.runner.failed_options import failed_options
from workbench.runner.failures import (
    MEMORY_MAY_HELP,
    Cancelled,
    Mistake,
    explain,
    is_fatal,
    trying_again,
)
from workbench.runner.instruments.memory import free_bytes, free_memory
from workbench.runner.numerics import comparison
from workbench.runner.numerics.shared_reference import SharedReference
from workbench.runner.variants.variant import Variant

TRIES = 3  # tries of a void block before its pair is given up
WARM_UP_S = 10.0  # longest wait until an arm is steady


class Alternation:
    """Builds contenders and runs their blocks; the caller gets what is measured.

    ``rounds`` is how many blocks of each contender the budget should hold. ``busy`` is the sentence
    for a person who changes toggles meanwhile. ``before`` blocks were timed already.
    """

    def __init__(
        self, context: RunnerContext, budget_s: float, rounds: int, busy: str, before: int = 0
    ) -> None:
        self._context = context
        self._budget_s = budget_s
        self._rounds = rounds
        self._busy = busy
        self._number = before  # number of the last timed block
        self.contenders: list[Contender] = []
        self.alone = False  # each block builds its arm again, with no other arm in memory
        self.why_alone = ""  # the reason as a clause
        self.when_alone: Callable[[], None] = lambda: None  # called once ``why_alone`` is known
        self.warm_up_s: float | None = None  # longest warm-up; None: ``WARM_UP_S``
        self.long_ms = math.inf  # a block of this length needs no more steps
        self.steps = 0
        self._paused_s = 0.0
        self._freed: list[Contender] = []  # arms that a check freed, until ``build_freed``
        self.shared: SharedReference | None = None  # results that the checks of a search share

    def now(self) -> float:
        """Return seconds of ``perf_counter``, which stops during a pause."""
        return time.perf_counter() - self._paused_s

    def begin(self, contender: Contender) -> None:
        """Begin the contender's segment and build its arm."""
        context = self._context
        contender.segment = context.begin_segment()
        configuration = contender.situation.configuration
        title = contender.title or label(configuration, context.device)
        context.wire.send(
            protocol.SegmentStarted(
                index=contender.segment,
                configuration=configuration,
                label=f"{contender.name}: {title}",
                reused=context.variants.has(contender.situation, contender.copy),
                ledger=model_facts(contender.situation),
            )
        )
        context.state("building", f"Building {contender.name}")
        try:
            self.build(contender)
        except (Cancelled, RunEnded):
            raise
        except Exception as error:
            base = self.contenders[0] if self.contenders else contender
            before = None if base is contender else base.situation.configuration
            if failed := failed_options(error, configuration, before):
                context.wire.send(
                    protocol.EvidenceFound(segment=contender.segment, evidence=failed)
                )
            raise

    def build(self, contender: Contender) -> Variant:
        """Return the contender's arm after its first step, alone in memory if necessary."""
        if self.alone:
            self._make_room(contender)
        try:
            return self._enter(contender)
        except Exception as error:
            self._context.variants.forget(contender.situation, contender.copy)
            failure = explain(error)
            if failure.kind not in MEMORY_MAY_HELP or self.alone or is_fatal(error):
                raise
        # Outside of the except clause: its traceback would keep the tensors of the failed build.
        return self._build_alone(contender, failure)

    def rebuilding(self) -> dict[str, Scalar]:
        """Return the facts that report if each block builds its arm again, and why."""
        why = self.why_alone if self.alone else ""
        return {"rebuilt_each_block": self.alone, "rebuilt_because": why}

    def check(self, contender: Contender, known: Numerics | None = None) -> Numerics:
        """Check the contender's numbers against a reference, in the state that is timed.

        With a ``shared`` reference, training goes on from the weights of the first check.
        ``known``: what a check of the same configuration showed, which is not repeated.

        To be called once it has settled: a model that adapts has chosen by then. Warms up again,
        and so knows better how long a block is: the first steps after a build may be slower.
        """
        if contender.variant is None:
            self.build(contender)
        context = self._context
        if known is not None:
            context.wire.send(
                protocol.Facts(segment=contender.segment, ledger=checked.facts(known))
            )
            return known
        context.segment = contender.segment
        context.state("running", f"Checking results of {contender.name}")
        self._make_room_to_check(contender)
        assert contender.variant is not None  # no name of its own: it may have to make room below
        with context.unwatched():
            numerics = comparison.check(
                contender.variant, contender.situation, context.check_cancelled, self.shared
            )
        context.variants.keep_numbers(contender.situation, numerics)
        context.wire.send(protocol.Facts(segment=contender.segment, ledger=checked.facts(numerics)))
        free_memory()
        context.memory.new_phase()  # no step used the memory of the check
        context.state("running", f"Warming up {contender.name}")
        self.warm_up(contender)
        self.set_steps(contender)
        return numerics

    def settle(self, contender: Contender) -> None:
        """Warm up, send the evidence, and set the length of a block."""
        context = self._context
        self.handle_commands()
        if contender.variant is None:  # it was freed for another arm
            self.build(contender)
        context.segment = contender.segment
        context.state("running", f"Warming up {contender.name}")
        self.warm_up(contender)
        assert contender.variant is not None
        evidence = contender.variant.find_evidence()
        context.wire.send(protocol.EvidenceFound(segment=contender.segment, evidence=evidence))
        self.set_steps(contender)

    def set_steps(self, contender: Contender) -> None:
        """Set the length of a block: the budget is shared among all contenders."""
        least_ms = 500 * contender.build_s if self.alone else 0.0
        contender.steps = blocks.block_steps(
            contender.step_ms,
            self._budget_s,
            self._rounds,
            least_ms,
            len(self.contenders),
            self._least_steps(contender.step_ms),
        )

    def _least_steps(self, step_ms: float) -> int:
        """Return the fewest steps of a block; steps of unknown duration may be long."""
        if math.isinf(self.long_ms):
            return blocks.LEAST_STEPS
        if math.isnan(step_ms):
            return 1
        return min(blocks.LEAST_STEPS, math.ceil(self.long_ms / step_ms))

    def warm_up(self, contender: Contender) -> None:
        """Step until the phase is steady, and what adapts has chosen; the last steps tell the time.

        Only the former gives up after a while.
        """
        context, began = self._context, self.now()
        context.phases.restart()
        until = began + (WARM_UP_S if self.warm_up_s is None else self.warm_up_s)
        steady = False
        contender.step_ms = math.nan
        adapting = _steps_to_settle(contender)
        while math.isnan(contender.step_ms) or (not steady and self.now() < until) or adapting > 0:
            contender.warm_up_steps = self._least_steps(contender.step_ms)
            block = self._attempt(contender, blocks.warm_up_block)
            self.handle_commands()
            if block is None:
                adapting = _steps_to_settle(contender)  # the arm may have been built again
            else:
                adapting -= block.steps
                self.steps += block.steps
                contender.step_ms = max(block.median_ms, 1e-3)
                steady = context.phases.phase is Phase.STEADY
        contender.warm_up_s = self.now() - began

    def block(
        self,
        contender: Contender,
        keep: Callable[[TimedBlock], None],
        run_block: Callable[..., TimedBlock | None] = blocks.run_block,
    ) -> bool:
        """Run a block, repeat it while it is void; True if one is valid. ``keep`` gets all."""
        tries = 0
        while tries < TRIES:
            if contender.variant is None:
                self.build(contender)
                self.warm_up(contender)
            run = functools.partial(run_block, number=self._number + 1)
            block = self._attempt(contender, run)
            self.handle_commands()
            if block is None:
                continue  # a command interrupted it, or memory was short: continue
            tries += 1
            self._number += 1
            self.steps += block.steps
            keep(block)
            self._report_divergence(contender, block)
            if not block.void:
                return True
        return False

    def _report_divergence(self, contender: Contender, block: TimedBlock) -> None:
        """Report, once for each contender, that its steps compute with meaningless numbers."""
        if block.diverged and not contender.diverged:
            contender.diverged = True
            advice = suggested_fixes.not_finite(f"loss of {contender.name}")
            configuration = contender.situation.configuration
            self._context.wire.send(
                suggested_fixes.with_fix(advice, configuration, self._context.device)
            )

    def handle_commands(self) -> None:
        """Handle waiting commands; raises ``Cancelled`` or ``RunEnded``."""
        context = self._context
        self._context.check_cancelled()
        while (command := context.wire.pending()) is not None:
            if isinstance(command, protocol.Pause):
                command = self._pause()
            if self._ignores(command):
                continue
            match command:
                case protocol.Resume():
                    pass
                case protocol.Cancel():
                    raise Cancelled
                case protocol.Stop():
                    raise RunEnded("stopped")
                case _:
                    raise RunEnded("stopped", command)

    def _pause(self) -> protocol.Command:
        """Wait for the command that ends the pause; its time belongs to no block."""
        context, began = self._context, time.perf_counter()
        with context.unwatched():
            context.state("paused")
            command = context.wire.next()
            while self._ignores(command):
                command = context.wire.next()
        self._paused_s += time.perf_counter() - began
        context.state("running")
        return command

    def _ignores(self, command: protocol.Command) -> bool:
        """Return True if a command changes nothing; a change of toggles is answered with why."""
        if isinstance(command, protocol.Apply):
            self._context.wire.send(explain(Mistake(self._busy)))
        # A prediction would be late: its configuration may already be measured.
        passed_over = protocol.Apply | protocol.Predict | protocol.Pause | protocol.Baseline
        return isinstance(command, passed_over)

    def rebuild(self, chance: random.Random, contenders: Sequence[Contender] | None = None) -> None:
        """Build arms again, in random order and at other addresses, and warm them up.

        ``contenders``: all by default.
        """
        order = list(self.contenders if contenders is None else contenders)
        chance.shuffle(order)
        rebuilding.release(self._context.variants, order)
        taken = []
        for contender in order:
            taken.append(rebuilding.allocate_random(self._context.device, chance))
            self.handle_commands()
            self.build(contender)
            if self.alone:
                return
        del taken  # the memory belongs to no arm
        for contender in order:
            self.warm_up(contender)

    def build_freed(self) -> None:
        """Build and warm up the arms whose memory a check has needed."""
        for contender in self._freed:
            if contender.variant is None and not self.alone:
                self._context.state("building", f"Building {contender.name}")
                self.build(contender)
                self.warm_up(contender)
        self._freed.clear()

    def forget(self) -> None:
        """Free every arm and all weights, so that the next arm has the memory to itself."""
        for contender in self.contenders:
            contender.variant = None
        self._context.variants.forget_all()

    def _enter(self, contender: Contender) -> Variant:
        context = self._context
        began = time.perf_counter()
        reused = context.variants.has(contender.situation, contender.copy)
        context.segment = contender.segment
        context.watchdog.active = True
        with context.phases.during(Phase.BUILD):
            arm = context.variants.get(contender.situation, context.phases, contender.copy)
        with arm.entered():
            if not reused and arm.prepare():
                self._context.check_cancelled()
            context.phases.restart()
            if not reused:
                blocks.first_step(context, arm)
        self._context.check_cancelled()
        contender.variant = arm
        contender.build_s = time.perf_counter() - began
        if not reused:
            arm.startup_s = contender.build_s
        facts = context.facts_of(arm, contender.segment)
        contender.least_ms = limit_ms(facts)
        context.wire.send(protocol.Facts(segment=contender.segment, ledger=facts))
        return arm

    def _build_alone(self, contender: Contender, failure: protocol.Failure) -> Variant:
        """Build the arm with no other arm in memory; raises if that fails too."""
        self.alone = True
        contender.variant = None
        self._make_room(contender)
        self._context.note("info", f"{contender.name}: {trying_again(failure)}")
        arm = self._enter(contender)
        self.why_alone = "the arms do not fit in memory together"
        if failure.kind == "capture":  # the cause may have been a lack of memory
            self.why_alone = f"{contender.name} could be captured only with no other arm in memory"
        self._context.note("warning", f"{self.why_alone}: each block builds its arm again")
        self.when_alone()
        return arm

    def _make_room(self, contender: Contender) -> None:
        """Free the other arms, whose memory this one needs."""
        for other in self.contenders:
            if other is not contender:
                other.variant = None
        if contender.variant is None:
            self._context.variants.forget_variants()
            free_memory()

    def _make_room_to_check(self, contender: Contender) -> None:
        """Free arms whose memory the reference needs; their next blocks build them again."""
        variant = contender.variant
        assert variant is not None
        wanted_bytes = comparison.bytes_wanted(variant)
        if free_bytes(self._context.device) < wanted_bytes:
            for other in self.contenders:
                if other is not contender and other.variant is not None:
                    other.variant = None  # a variant that is not freed is used again
                    self._freed.append(other)
            self._context.variants.make_room(wanted_bytes, variant)

    def _attempt(
        self, contender: Contender, run: Callable[[RunnerContext, Contender], TimedBlock | None]
    ) -> TimedBlock | None:
        """Run a block; None if it was ended early, or needs the other arms' memory."""
        try:
            return run(self._context, contender)
        except Exception as error:
            failure = explain(error)
            if self.alone or is_fatal(error) or failure.kind != "out-of-memory":
                raise
            self._context.clock.drain(wait=True)  # steps of no block
        self._build_alone(contender, failure)
        return None


def _steps_to_settle(contender: Contender) -> int:
    return 0 if contender.variant is None else contender.variant.steps_to_settle()
