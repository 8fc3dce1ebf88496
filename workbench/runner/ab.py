"""A run that compares two configurations: two warm arms, alternating block by block.

Both are built first, looked at for evidence, checked against a reference and warmed up. Where they
do not fit in memory together, each block builds its arm anew. The verdict so far is sent after each
pair, so that whoever stops, or kills, keeps what was measured.
"""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Callable

from sessions import verdict
from sessions.model import Judgement, PairedComparison, Phase
from workbench import protocol
from workbench.runner import blocks, numerics
from workbench.runner.arm import Arm, label
from workbench.runner.blocks import Contender, TimedBlock
from workbench.runner.failures import Cancelled, Mistake, explain, is_fatal
from workbench.runner.resolve import LONGEST_S, require_unblocked, resolve
from workbench.runner.rig import Rig
from workbench.runner.run import RunEnded

ORDERS = ("random", "abba")
TRIES = 3  # of a block that is void, before its pair is given up
HOPELESS_PAIRS = 8  # so many pairs given up in a row, and none ever whole, end the comparison
WARM_UP_S = 10.0  # at most, for an arm that does not become steady


class CompareRun:
    """Alternates two arms until the interval is narrow enough, time is spent, or a command ends."""

    def __init__(self, rig: Rig, command: protocol.Compare) -> None:
        self._rig = rig
        self._command = command
        self._random = random.Random(command.seed)
        self._contenders: list[Contender] = []
        self._alone = False  # the arms do not fit in memory together
        self._index = -1
        self._blocks = list(command.before)
        self._began = 0.0
        self._judgement: Judgement | None = None
        self.steps = 0

    def execute(self) -> None:
        """Compare to the end; raises ``Mistake``, ``Cancelled``, ``RunEnded`` or what failed."""
        self._prepare()
        try:
            self._build_both()
            self._announce()
            for contender in self._contenders:
                self._look_at(contender)
            self._measure()
        finally:
            self._rig.watchdog.active = False
            if self._index >= 0:
                self._judge(final=True)

    # Building

    def _prepare(self) -> None:
        command, rig = self._command, self._rig
        if not 0 < command.budget_s <= LONGEST_S:
            raise Mistake(f"budget_s = {command.budget_s:g} is outside of 0 to {LONGEST_S:g}")
        if command.order not in ORDERS:
            raise Mistake(f"order: unknown {command.order!r}; expected one of {ORDERS}")
        for name in ("region", "floor", "half_width"):
            if not 0 <= (value := getattr(command, name)) < 1:
                raise Mistake(f"{name} = {value:g} is outside of 0 to 1")
        situations = [resolve(one, rig.device) for one in (command.base, command.other)]
        for situation in situations:
            require_unblocked(situation)
        same = situations[0].configuration == situations[1].configuration
        self._contenders = [
            Contender(number, number if same else 0, situation)
            for number, situation in enumerate(situations)
        ]
        rig.arms.keep_only(*situations)

    def _build_both(self) -> None:
        rig = self._rig
        for contender in self._contenders:
            contender.segment = rig.begin_segment()
            configuration = contender.situation.configuration
            side = "AB"[contender.number]
            rig.wire.send(
                protocol.SegmentStarted(
                    index=contender.segment,
                    configuration=configuration,
                    label=f"{side}: {label(configuration, rig.device)}",
                    reused=rig.arms.has(contender.situation, contender.copy),
                )
            )
            rig.state("building", f"Building {side}")
            self._build(contender)

    def _build(self, contender: Contender) -> Arm:
        """The contender's arm after its first step; alone in memory if it must be."""
        if self._alone:
            self._make_room(contender)
        try:
            return self._enter(contender)
        except Exception as error:
            self._rig.arms.forget(contender.situation, contender.copy)
            kind = explain(error).kind
            if kind not in ("out-of-memory", "capture") or self._alone or is_fatal(error):
                raise
        # Outside of the except clause: its traceback would keep the tensors of the failed build.
        self._go_alone(contender)
        return self._enter(contender)

    def _enter(self, contender: Contender) -> Arm:
        rig = self._rig
        began = time.perf_counter()
        reused = rig.arms.has(contender.situation, contender.copy)
        rig.segment = contender.segment
        rig.watchdog.active = True
        with rig.phases.during(Phase.BUILD):
            arm = rig.arms.get(contender.situation, rig.phases, contender.copy)
        rig.phases.restart()
        with arm.entered():
            if not reused:
                rig.clock.begin()
                with arm.watched():
                    arm.step()
                    rig.synchronize()
                rig.clock.lap(rig.phases.step_phase(time.perf_counter_ns()))
                rig.send_steps(rig.clock.drain(wait=True))
        self._check_cancelled()
        contender.arm = arm
        contender.build_s = time.perf_counter() - began
        rig.wire.send(protocol.Facts(segment=contender.segment, ledger=arm.ledger))
        return arm

    def _go_alone(self, contender: Contender) -> None:
        self._alone = True
        contender.arm = None
        self._make_room(contender)
        text = "the arms do not fit in memory together: each block builds its arm anew"
        self._rig.wire.send(protocol.Note(kind="warning", text=text))

    def _make_room(self, contender: Contender) -> None:
        """Free the other arm, whose place in memory this one needs."""
        for other in self._contenders:
            if other is not contender:
                other.arm = None
        if contender.arm is None:
            self._rig.arms.forget_arms()
            blocks.free_memory()

    def _announce(self) -> None:
        rig, command = self._rig, self._command
        self._index, rig.comparisons = rig.comparisons, rig.comparisons + 1
        rig.wire.send(
            protocol.ComparisonStarted(
                index=self._index,
                arms=[label(one.situation.configuration, rig.device) for one in self._contenders],
                segments=[one.segment for one in self._contenders],
                asked={
                    "budget_s": command.budget_s,
                    "region": command.region,
                    "floor": command.floor,
                    "half_width": command.half_width,
                    "order": command.order,
                    "seed": command.seed,
                    "identical": self._contenders[1].copy == 1,
                    "rebuilt_each_block": self._alone,
                },
                before=command.before,
            )
        )

    def _look_at(self, contender: Contender) -> None:
        """Warm up, ask for evidence, check the numbers, and settle how long a block is."""
        rig = self._rig
        if contender.arm is None:
            self._build(contender)
        side = "AB"[contender.number]
        rig.segment = contender.segment
        rig.state("running", f"Checking the numbers of {side}")
        assert contender.arm is not None  # no name of its own: it may have to make room below
        found = numerics.check(contender.arm, contender.situation)
        blocks.free_memory()
        rig.wire.send(
            protocol.NumericsChecked(comparison=self._index, arm=contender.number, numerics=found)
        )
        self._take_commands()
        rig.state("running", f"Warming up {side}")
        self._warm_up(contender)
        evidence = contender.arm.find_evidence()
        rig.wire.send(protocol.EvidenceFound(segment=contender.segment, evidence=evidence))
        least_ms = 500 * contender.build_s if self._alone else 0.0
        contender.steps = blocks.block_steps(
            contender.step_ms, self._command.budget_s, 2 * verdict.MIN_PAIRS, least_ms
        )

    def _warm_up(self, contender: Contender) -> None:
        """Step until the phase is steady; the last steps tell how long one takes."""
        rig = self._rig
        rig.phases.restart()
        until = time.perf_counter() + WARM_UP_S
        steady = False
        while math.isnan(contender.step_ms) or (not steady and time.perf_counter() < until):
            done = self._attempt(contender, blocks.warm_up_block)
            self._take_commands()
            if done is not None:
                self.steps += done.steps
                contender.step_ms = max(done.median_ms, 1e-3)
                steady = rig.phases.phase is Phase.STEADY

    # Measuring

    def _measure(self) -> None:
        rig, command = self._rig, self._command
        first = 1 + max((block.pair for block in self._blocks), default=-1)
        whole = given_up = 0
        rig.state("running", "Alternating A and B")
        self._began = time.perf_counter()
        for pair in range(first, first + 1_000_000):
            turned = (
                bool(self._random.getrandbits(1)) if command.order == "random" else pair % 2 == 1
            )
            if self._pair(pair, turned):
                whole += 1
            else:
                given_up += 1
            spent_s = time.perf_counter() - self._began
            if whole and verdict.is_look(whole):
                self._judge()
            self._tell(spent_s / command.budget_s)
            settled = self._judgement is not None and self._judgement.settled
            if settled or spent_s >= command.budget_s or (given_up >= HOPELESS_PAIRS and not whole):
                return

    def _pair(self, pair: int, turned: bool) -> bool:
        """Run both blocks of a pair, each again while it is void; whether both came to count."""
        order = reversed(self._contenders) if turned else self._contenders
        return all(self._block(contender, pair) for contender in order)

    def _block(self, contender: Contender, pair: int) -> bool:
        tries = 0
        while tries < TRIES:
            if contender.arm is None:
                self._build(contender)
                self._warm_up(contender)
            number = len(self._blocks) + 1
            run = functools.partial(blocks.run_block, number=number)
            done = self._attempt(contender, run)
            self._take_commands()
            if done is None:
                continue  # a command came in between, or memory was short: the comparison goes on
            tries += 1
            self.steps += done.steps
            block = protocol.Block(
                arm=contender.number,
                pair=pair,
                median_ms=done.median_ms,
                clock_mhz=done.clock_mhz,
                void=done.void,
            )
            self._blocks.append(block)
            self._rig.wire.send(protocol.BlockDone(comparison=self._index, block=block))
            if not done.void:
                return True
        return False

    def _attempt(
        self, contender: Contender, run: Callable[[Rig, Contender], TimedBlock | None]
    ) -> TimedBlock | None:
        """A block; None where it was ended early, or needs the other arm's place in memory."""
        try:
            return run(self._rig, contender)
        except Exception as error:
            kind = explain(error).kind
            if self._alone or is_fatal(error) or kind != "out-of-memory":
                raise
        self._go_alone(contender)
        self._build(contender)
        return None

    def _judge(self, final: bool = False) -> None:
        command = self._command
        seconds = command.before_s
        if self._began:
            seconds += time.perf_counter() - self._began
        self._judgement = verdict.judge(
            _comparison(self._blocks),
            region=command.region,
            floor=command.floor,
            half_width=command.half_width,
            seconds=seconds,
        )
        self._rig.wire.send(
            protocol.Judged(
                comparison=self._index, judgement=self._judgement, seconds=seconds, final=final
            )
        )

    def _tell(self, fraction: float) -> None:
        judgement = self._judgement
        text = "" if judgement is None else f"{judgement.pairs} pairs, {judgement.verdict}"
        self._rig.wire.send(
            protocol.Progress(task="alternating", fraction=min(1.0, fraction), text=text)
        )

    # Commands

    def _check_cancelled(self) -> None:
        if self._rig.wire.cancelled.is_set():
            raise Cancelled

    def _take_commands(self) -> None:
        rig = self._rig
        self._check_cancelled()
        while (command := rig.wire.pending()) is not None:
            if isinstance(command, protocol.Pause):
                rig.watchdog.active = False
                rig.state("paused")
                while isinstance(command := rig.wire.next(), protocol.Pause):
                    pass
                rig.watchdog.active = True
                rig.watchdog.begin(rig.phases.phase)
                rig.state("running")
            match command:
                case protocol.Resume():
                    pass
                case protocol.Apply():
                    sentence = "Two configurations are being compared; stop before changing one."
                    rig.wire.send(explain(Mistake(sentence)))
                case protocol.Cancel():
                    raise Cancelled
                case protocol.Stop():
                    raise RunEnded("stopped")
                case _:
                    raise RunEnded("stopped", command)


def _comparison(found: list[protocol.Block]) -> PairedComparison:
    return PairedComparison(
        arms=[],
        order=[block.arm for block in found],
        medians_ms=[block.median_ms for block in found],
        ratio=math.nan,
        low=math.nan,
        high=math.nan,
        verdict="UNDECIDED",
        pairs=[block.pair for block in found],
        clocks_mhz=[math.nan if block.clock_mhz is None else block.clock_mhz for block in found],
        voids=[block.void for block in found],
    )
