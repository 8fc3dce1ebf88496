"""One run: from Start to Finished, through a segment for every configuration on the way.

Per step nothing happens but the step and the marking of its boundary. What was measured is sent
about 30 times a second, between two steps, and the time of that belongs to neither.
"""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import time

import msgspec
import torch

from sessions.ceilings import INVALID, impossible, limit_ms
from sessions.model import Configuration, Evidence, Phase, Scalar
from sessions.verdicts.regression import SKETCH
from workbench import protocol
from workbench.runner import suggested_fixes
from workbench.runner.building.labels import label
from workbench.runner.config.model_digest import model_facts
from workbench.runner.config.resolve import demand
from workbench.runner.config.values import check_limits
from workbench.runner.context import Rig
from workbench.runner.decoding.checkpoint import SavedRound
from workbench.runner.decoding.generated_text import TextReader
from workbench.runner.experiments import decode_state
from workbench.runner.experiments.paired import blocks
from workbench.runner.experiments.paired.pairing import Pairing
from workbench.runner.experiments.segment_check import SegmentCheck
from workbench.runner.experiments.segment_evidence import SegmentEvidence
from workbench.runner.failed_options import failed_options
from workbench.runner.failures import (
    MEMORY_MAY_CURE,
    Cancelled,
    explain,
    is_fatal,
    trying_again,
    unwritten,
)
from workbench.runner.instruments.memory import free_memory
from workbench.runner.instruments.metrics import MetricReader
from workbench.runner.interfaces import Situation
from workbench.runner.numerics import masked_inf
from workbench.runner.numerics.nan_watch import FiniteWatch
from workbench.runner.numerics.result_sketch import sketch
from workbench.runner.suggested_fixes import cure
from workbench.runner.toggles import all_toggles
from workbench.runner.toggles.kernel_tuning import origins
from workbench.runner.variants.variant import Arm

FLUSH_NS = 33_000_000


class RunEnded(Exception):  # noqa: N818 - carries a reason, not an error
    """The run is over; ``command`` is what the engine has to do next, if anything."""

    def __init__(self, reason: str, command: protocol.Command | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.command = command


class Run:
    """Steps one configuration after another until a limit or a command ends it."""

    def __init__(self, rig: Rig, start: protocol.Start) -> None:
        self._rig = rig
        self._start = start
        self._arm: Arm | None = None
        self._metrics: MetricReader | None = None
        self._finite: FiniteWatch | None = None
        self._text: TextReader | None = None
        self._situation: Situation | None = None
        self._entered = contextlib.ExitStack()
        self._output: torch.Tensor | None = None
        self._deadline_ns: int | None = None
        self._steady = 0
        self._saved: SavedRound | None = None  # to go on from, until it is done
        self._evidence = SegmentEvidence(self._send_evidence)
        self._least_ms = math.nan  # that a step of the segment can take; NaN too once it was said
        self._numbers = SegmentCheck(rig, start.check)
        self._pairing = Pairing(rig, start)
        self.configuration = start.configuration  # the last requested one
        self.steps = 0

    def execute(self) -> None:
        """Run until the end, which is always an exception: RunEnded, Cancelled, or a failure."""
        rig = self._rig
        check_limits(self._start)
        try:
            self._switch(self._start.configuration)
            if self._start.seconds is not None:
                self._deadline_ns = time.perf_counter_ns() + int(self._start.seconds * 1e9)
            while True:
                self._step()
                self._handle_commands()
        except (RunEnded, Cancelled):
            raise
        except Exception as error:
            if not is_fatal(error):
                rig.send_steps(rig.clock.drain(wait=True))  # those before it
            raise
        finally:
            rig.watchdog.active = False
            self._entered.close()

    # Segments

    def _switch(self, configuration: Configuration) -> None:
        """Begin a segment; if that fails, go back to the configuration before, if there is one."""
        before = self._situation
        self.configuration = configuration
        try:
            (situation,) = demand(self._rig.wire, self._rig.device, configuration)
            if before is None:
                self._saved = decode_state.read(
                    situation, self._start.load_state, self._start.save_state
                )
            self._leave()
            self._begin(situation)
        except (RunEnded, Cancelled):
            raise
        except Exception as error:
            if before is None or is_fatal(error):
                raise
            failure = cure(explain(error), configuration, self._rig.device)
        else:
            return
        # Outside of the except clause: its traceback would keep the tensors of the failed build.
        gc.collect()
        free_memory()
        self._rig.wire.send(failure)
        self.configuration = before.configuration
        if self._arm is None:
            self._rig.note("warning", "went back to the configuration before")
            self._begin(before)

    def _begin(self, situation: Situation) -> None:
        rig, wire = self._rig, self._rig.wire
        rig.arms.keep_only(situation)
        reused = rig.arms.has(situation)
        index = rig.begin_segment()
        wire.send(
            protocol.SegmentStarted(
                index=index,
                configuration=situation.configuration,
                label=label(situation.configuration, rig.device),
                reused=reused,
                ledger=model_facts(situation),
            )
        )
        rig.watchdog.active = True
        if not reused:
            rig.state("building", "Building the model")
        self._output = None
        arm = self._enter(situation, reused)
        if isinstance(arm, protocol.Failure):
            count = rig.arms.forget_arms()
            self._rig.note("info", f"freed what was built before ({count}); {trying_again(arm)}")
            arm = self._enter(situation, reused, again=True)
            assert isinstance(arm, Arm)
        rig.follow(arm)
        self._arm, self._situation, self._steady = arm, situation, 0
        self._metrics = MetricReader(wire, index, arm.model)
        self._finite = FiniteWatch(rig.device, self._infinities)
        self._text = None
        if arm.text is not None and arm.rounds is not None:
            data = arm.situation.configuration.data
            self._text = TextReader(wire, index, arm.text, arm.rounds, arm.batches, data)
        self._evidence.begin()
        self._numbers.begin(situation)
        self._pairing.begin(situation, index)
        self._least_ms = limit_ms(rig.facts_of(arm, index))
        rig.state("running")

    def _enter(
        self, situation: Situation, reused: bool, *, again: bool = False
    ) -> Arm | protocol.Failure:
        """Build an arm and take its first step.

        Return the failure if it can be tried ``again`` with more memory.
        """
        rig, began = self._rig, time.perf_counter()
        try:
            with rig.phases.during(Phase.BUILD):
                arm = rig.arms.get(situation, rig.phases)
            self._check_cancelled()
            self._facts(**rig.facts_of(arm, rig.segment))
            self._entered.enter_context(arm.entered())
            if not reused and arm.prepare():
                self._facts(**arm.ledger)
                self._check_cancelled()
            rig.phases.restart()
            if not reused:
                self._first_step(arm)
                arm.made_s = time.perf_counter() - began
            if self._saved is not None:
                decode_state.restore(self._saved, arm.decoder, arm.rounds, arm.batches)
                self._rig.note("info", self._saved.note)
                self._saved = None
            return arm
        except (RunEnded, Cancelled):
            self._entered.close()
            rig.arms.forget(situation)
            raise
        except Exception as error:
            self._entered.close()
            rig.arms.forget(situation)
            failure = explain(error)
            if again or failure.kind not in MEMORY_MAY_CURE or not rig.arms.count:
                self._facts(failure=failure.sentence)
                before = None if self._situation is None else self._situation.configuration
                if failed := failed_options(error, situation.configuration, before):
                    self._send_evidence(failed)
                raise
        return failure

    def _first_step(self, arm: Arm) -> None:
        """Run the step in which all that is lazy happens: compiles, captures, allocations."""
        rig = self._rig
        began = time.perf_counter()
        with arm.watched():
            arm.restart()
            rig.clock.begin()
            self._output = arm.step()
            rig.synchronize()
        rig.clock.lap(rig.phases.step_phase(time.perf_counter_ns()))
        arm.restart()
        rig.send_steps(rig.clock.drain(wait=True))
        self.steps += 1
        self._facts(first_step_s=round(time.perf_counter() - began, 4), **arm.record.facts)
        if digest := sketch(self._output):
            self._facts(**{SKETCH: digest})
        if arm.record.tiles:
            self._facts(tiles=origins(arm.record.tiles))
        self._check_cancelled()

    def _leave(self, *, last: bool = False, cancelled: bool = False) -> None:
        """End the segment: wait for its last steps and send them.

        The ``last`` segment's decode state is saved if requested, before the check, which begins
        its round anew and is skipped after ``cancelled``.
        """
        if self._arm is None:
            return
        self._flush(wait=True)
        self._pairing.end()
        self._evidence.show(self._arm)
        if self._arm.trainer is not None and self._output is not None:
            loss = float(self._output)
            assert self._finite is not None
            if not math.isfinite(loss) and not self._finite.triggered:
                self._not_finite()
            # JSON has no NaN, and a diverged loss is a fact like any other.
            self._facts(loss=round(loss, 6) if math.isfinite(loss) else str(loss))
        if self._metrics is not None and self._output is not None:
            self._metrics.finish(self.steps)
        if self._text is not None and self._output is not None:
            self._text.finish()
        self._rig.follow(None)
        arm = self._arm
        self._arm, self._metrics, self._text, self._output = None, None, None, None
        self._entered.close()
        if last and self._start.save_state:
            self._rig.watchdog.active = False  # writing is no hang
            try:
                path = self._start.save_state
                saved = decode_state.save(path, arm.situation, arm.decoder, arm.rounds, arm.batches)
                self._rig.note("info", saved)
            except OSError as error:
                self._rig.wire.send(unwritten("The decode state", self._start.save_state, error))
        self._numbers.end(arm, cancelled)

    def _check_numbers(self, arm: Arm) -> None:
        """Check the numbers between two steps, after which the segment warms up again."""
        self._flush(wait=True)
        self._entered.close()
        self._numbers.look(arm)
        self._rig.memory.new_phase()  # what the look took is no step's
        self._entered.enter_context(arm.entered())
        if arm.rounds is not None:
            arm.restart()
            arm.ready()
        self._rig.phases.restart()
        self._rig.watchdog.active = True
        self._rig.watchdog.begin(self._rig.phases.phase)
        self._rig.state("running")

    def _pair(self, arm: Arm) -> None:
        """Run a block of the baseline and one of the segment between two steps."""
        rig = self._rig
        self._flush(wait=True)
        if arm.trainer is None:
            self._output = None  # whose memory the baseline may need
        segment = rig.segment
        self._entered.close()
        rig.state("running", "Pairing with the baseline")
        self.steps += self._pairing.run(arm)
        self._entered.enter_context(arm.entered())
        rig.segment = segment
        rig.follow(arm)
        if rig.phases.phase is not Phase.STEADY:
            rig.phases.restart()
        blocks.settle(rig, (arm.ready, arm.step))
        rig.state("running")

    # Stepping

    def _step(self) -> None:
        """Step until a command waits; raises RunEnded at a limit."""
        rig, arm = self._rig, self._arm
        assert arm is not None
        wire, phases, watchdog, numbers = rig.wire, rig.phases, rig.watchdog, self._numbers
        step, ready, pairing = arm.step, arm.ready, self._pairing
        lap = rig.clock.lap
        limit = self._start.steps if self._start.steps is not None else float("inf")
        now_ns = flushed_ns = 0
        rig.clock.begin()
        while not wire.waiting and self.steps < limit:
            if ready():
                if numbers.due(arm.steps_to_settle(), self._steady):
                    self._check_numbers(arm)
                rig.clock.begin()
            self._output = None  # whose memory the step may need
            self._output = step()
            phase = phases.step_phase(now_ns)
            now_ns = watchdog.beat_ns = lap(phase)
            self.steps += 1
            if now_ns - flushed_ns > FLUSH_NS:
                flushed_ns = now_ns
                self._flush()
                if self._deadline_ns is not None and now_ns > self._deadline_ns:
                    break
                if arm.rounds is None and numbers.due(arm.steps_to_settle(), self._steady):
                    self._check_numbers(arm)
                elif pairing.due():
                    self._pair(arm)
                rig.clock.begin()
        else:
            if self.steps < limit:
                return
        self._leave(last=True)
        raise RunEnded("done")

    def _flush(self, *, wait: bool = False) -> None:
        rig, arm = self._rig, self._arm
        assert arm is not None
        laps = rig.clock.drain(wait=wait)
        rig.send_steps(laps)
        self._pairing.see(laps)
        if self._metrics is not None:
            self._metrics.poll(self.steps)
        output, finite = self._output, self._finite
        if finite is not None and output is not None and finite.poll(output, arm.batches.index):
            self._not_finite()
        if self._text is not None:
            self._text.poll()
        steady = [lap for lap in laps if lap.phase == Phase.STEADY]
        self._steady += len(steady)
        if steady and not math.isnan(self._least_ms):
            self._report_impossible_steps(statistics.median(lap.step_ms for lap in steady))
        self._evidence.look(arm, self._steady)

    def _report_impossible_steps(self, step_ms: float) -> None:
        """Report, once a segment, that its steps are faster than the device can run them."""
        if why := impossible(step_ms, self._least_ms, self._rig.device.type):
            self._least_ms = math.nan
            self._facts(**{INVALID: why})
            self._rig.note("warning", f"the step times are INVALID: {why}")

    def _infinities(self, batch: int) -> masked_inf.Counts | None:
        """Return the counts that one batch's outputs may have, in a pause between two steps."""
        rig, arm = self._rig, self._arm
        if (
            arm is None
            or arm.trainer is not None
            or not arm.situation.workload.feeds
            or arm.rounds is not None
        ):
            return None  # a loss, or tokens
        with rig.unwatched():
            try:
                return masked_inf.expected(arm, batch)
            finally:
                free_memory()
                rig.phases.restart()

    def _not_finite(self) -> None:
        """Tell, once a segment, that the numbers mean nothing any more."""
        rig = self._rig
        assert self._arm is not None
        what = "loss" if self._arm.trainer is not None else "output"
        rig.wire.send(cure(suggested_fixes.not_finite(what), self.configuration, rig.device))

    # Commands

    def _handle_commands(self) -> None:
        toggles: dict[str, str] = {}
        while (command := self._rig.wire.pending()) is not None:
            match command:
                case protocol.Apply():
                    toggles |= command.toggles
                case protocol.Pause():
                    self._apply(toggles)  # those that come in the pause are later ones
                    toggles = {}
                    self._pause()
                case protocol.Resume():
                    pass
                case protocol.Predict():
                    self._predict(command)
                case protocol.Baseline():
                    self._pairing.choose(command)
                case _:
                    self._end(command)
        self._apply(toggles)

    def _pause(self) -> None:
        rig = self._rig
        self._flush(wait=True)
        self._pairing.end()
        with rig.unwatched():
            rig.state("paused")
            while not isinstance(command := rig.wire.next(), protocol.Resume):
                match command:
                    case protocol.Apply():
                        self._apply(command.toggles)
                        self._flush(wait=True)
                        rig.watchdog.active = False
                        rig.state("paused")
                    case protocol.Pause():
                        pass
                    case protocol.Predict():
                        rig.answer(command)
                    case protocol.Baseline():
                        self._pairing.choose(command)
                    case _:
                        self._end(command)
        rig.state("running")

    def _predict(self, request: protocol.Predict) -> None:
        """Answer between two steps; the time counts for neither."""
        self._flush(wait=True)
        with self._rig.unwatched():
            self._rig.answer(request)
        self._rig.state("running")

    def _apply(self, toggles: dict[str, str]) -> None:
        assert self._situation is not None
        before = self._situation.configuration
        changed = {
            name: option for name, option in toggles.items() if before.toggles.get(name) != option
        }
        if not changed:
            return
        self._rig.note("toggle", _describe(changed))
        self._switch(msgspec.structs.replace(before, toggles={**before.toggles, **changed}))

    def _end(self, command: protocol.Command) -> None:
        cancelled = isinstance(command, protocol.Cancel)
        self._leave(last=True, cancelled=cancelled)
        if cancelled:
            raise Cancelled
        passed_on = None if isinstance(command, protocol.Stop) else command
        raise RunEnded("stopped", passed_on)

    def _check_cancelled(self) -> None:
        if self._rig.wire.cancelled.is_set():
            raise Cancelled

    def _facts(self, **ledger: Scalar) -> None:
        self._rig.wire.send(protocol.Facts(segment=self._rig.segments - 1, ledger=ledger))

    def _send_evidence(self, evidence: list[Evidence]) -> None:
        segment = self._rig.segments - 1
        self._rig.wire.send(protocol.EvidenceFound(segment=segment, evidence=evidence))


def _describe(changed: dict[str, str]) -> str:
    toggles = all_toggles()
    parts = [
        f"{toggles[name].title}: {toggles[name].options.get(option, option)}"
        if name in toggles
        else f"{name}: {option}"
        for name, option in changed.items()
    ]
    return ", ".join(parts)
