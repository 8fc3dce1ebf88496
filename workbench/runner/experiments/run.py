"""One run: from Start to Finished, through a segment for every configuration on the way.

During a step, only its boundary is marked. Measurements are sent about 30 times a second, between
two steps, and the time for this belongs to neither.
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
from workbench.runner.config.values import check_limits
from workbench.runner.context import RunnerContext
from workbench.runner.decoding.checkpoint import SavedRound
from workbench.runner.decoding.generated_text import TextReader
from workbench.runner.experiments import decode_state
from workbench.runner.experiments.paired import blocks
from workbench.runner.experiments.paired.pairing import Pairing
from workbench.runner.experiments.segment_check import SegmentCheck
from workbench.runner.experiments.segment_evidence import SegmentEvidence
from workbench.runner.failed_options import failed_options
from workbench.runner.failures import (
    MEMORY_MAY_HELP,
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
from workbench.runner.suggested_fixes import with_fix
from workbench.runner.toggles import all_toggles
from workbench.runner.toggles.kernel_tuning import origins
from workbench.runner.variants.variant import Variant

FLUSH_NS = 33_000_000


class RunEnded(Exception):  # noqa: N818 - carries a reason, not an error
    """The run has ended; ``command`` is the engine's next command, if any."""

    def __init__(self, reason: str, command: protocol.Command | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.command = command


class Run:
    """Steps one configuration after another until a limit or a command ends it."""

    def __init__(self, context: RunnerContext, start: protocol.Start) -> None:
        self._context = context
        self._start = start
        self._variant: Variant | None = None
        self._metrics: MetricReader | None = None
        self._finite: FiniteWatch | None = None
        self._text: TextReader | None = None
        self._situation: Situation | None = None
        self._entered = contextlib.ExitStack()
        self._output: torch.Tensor | None = None
        self._deadline_ns: int | None = None
        self._steady = 0
        self._saved: SavedRound | None = None  # the next round starts from it
        self._evidence = SegmentEvidence(self._send_evidence)
        self._least_ms = math.nan  # least time of a step of the segment; NaN once it was reported
        self._numbers = SegmentCheck(context, start.check)
        self._pairing = Pairing(context, start)
        self.configuration = start.configuration  # the last requested one
        self.steps = 0

    def execute(self) -> None:
        """Run until the end, which is always an exception: RunEnded, Cancelled, or a failure."""
        context = self._context
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
                context.send_steps(context.clock.drain(wait=True))  # those before it
            raise
        finally:
            context.watchdog.active = False
            self._entered.close()

    # Segments

    def _switch(self, configuration: Configuration) -> None:
        """Begin a segment; if that fails, return to the previous configuration, if there is one."""
        before = self._situation
        self.configuration = configuration
        try:
            (situation,) = self._context.resolve(configuration)
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
            failure = with_fix(explain(error), configuration, self._context.device)
        else:
            return
        # Outside of the except clause: its traceback would keep the tensors of the failed build.
        gc.collect()
        free_memory()
        self._context.wire.send(failure)
        self.configuration = before.configuration
        if self._variant is None:
            self._context.note("warning", "returned to the previous configuration")
            self._begin(before)

    def _begin(self, situation: Situation) -> None:
        context, wire = self._context, self._context.wire
        context.variants.keep_only(situation)
        reused = context.variants.has(situation)
        index = context.begin_segment()
        wire.send(
            protocol.SegmentStarted(
                index=index,
                configuration=situation.configuration,
                label=label(situation.configuration, context.device),
                reused=reused,
                ledger=model_facts(situation),
            )
        )
        context.watchdog.active = True
        if not reused:
            context.state("building", "Building the model")
        self._output = None
        variant = self._enter(situation, reused)
        if isinstance(variant, protocol.Failure):
            count = context.variants.forget_variants()
            context.note("info", f"freed the earlier builds ({count}); {trying_again(variant)}")
            variant = self._enter(situation, reused, is_retry=True)
            assert isinstance(variant, Variant)
        context.set_variant(variant)
        self._variant, self._situation, self._steady = variant, situation, 0
        self._metrics = MetricReader(wire, index, variant.model)
        self._finite = FiniteWatch(context.device, self._infinities)
        self._text = None
        if variant.written_tokens is not None and variant.rounds is not None:
            written, data = variant.written_tokens, situation.configuration.data
            self._text = TextReader(wire, index, written, variant.rounds, variant.batches, data)
        self._evidence.begin()
        self._numbers.begin(situation)
        self._pairing.begin(situation, index)
        self._least_ms = limit_ms(context.facts_of(variant, index))
        context.state("running")

    def _enter(
        self, situation: Situation, reused: bool, *, is_retry: bool = False
    ) -> Variant | protocol.Failure:
        """Build a variant and take its first step.

        Return the failure if more memory may help, unless this ``is_retry``.
        """
        context, began = self._context, time.perf_counter()
        try:
            with context.phases.during(Phase.BUILD):
                variant = context.variants.get(situation, context.phases)
            context.check_cancelled()
            self._facts(**context.facts_of(variant, context.segment))
            self._entered.enter_context(variant.entered())
            if not reused and variant.prepare():
                self._facts(**variant.ledger)
                context.check_cancelled()
            context.phases.restart()
            if not reused:
                self._first_step(variant)
                variant.startup_s = time.perf_counter() - began
            if self._saved is not None:
                decode_state.restore(self._saved, variant)
                context.note("info", self._saved.note)
                self._saved = None
            return variant
        except (RunEnded, Cancelled):
            self._entered.close()
            context.variants.forget(situation)
            raise
        except Exception as error:
            self._entered.close()
            context.variants.forget(situation)
            failure = explain(error)
            if is_retry or failure.kind not in MEMORY_MAY_HELP or not context.variants.count:
                self._facts(failure=failure.sentence)
                before = None if self._situation is None else self._situation.configuration
                if failed := failed_options(error, situation.configuration, before):
                    self._send_evidence(failed)
                raise
        return failure

    def _first_step(self, variant: Variant) -> None:
        """Run the first step, and report its duration and findings."""
        context, began = self._context, time.perf_counter()
        self._output = blocks.first_step(context, variant)
        self.steps += 1
        self._facts(first_step_s=round(time.perf_counter() - began, 4), **variant.record.facts)
        if digest := sketch(self._output):
            self._facts(**{SKETCH: digest})
        if variant.record.tiles:
            self._facts(tiles=origins(variant.record.tiles))
        context.check_cancelled()

    def _leave(self, *, last: bool = False, cancelled: bool = False) -> None:
        """End the segment: wait for its last steps and send them.

        The ``last`` segment's decode state is saved if requested, before the check, which is
        skipped after ``cancelled``.
        """
        if self._variant is None:
            return
        self._flush(wait=True)
        self._pairing.end()
        self._evidence.show(self._variant)
        if self._variant.trainer is not None and self._output is not None:
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
        self._context.set_variant(None)
        variant = self._variant
        self._variant, self._metrics, self._text, self._output = None, None, None, None
        self._entered.close()
        if last and self._start.save_state:
            self._context.watchdog.active = False  # writing is no hang
            try:
                self._context.note("info", decode_state.save(self._start.save_state, variant))
            except OSError as error:
                self._context.wire.send(
                    unwritten("The decode state", self._start.save_state, error)
                )
        self._numbers.end(variant, cancelled)

    def _check_numbers(self, variant: Variant) -> None:
        """Check the numbers between two steps, after which the segment warms up again."""
        self._flush(wait=True)
        self._entered.close()
        self._numbers.look(variant)
        self._context.memory.new_phase()  # no step used the memory of the check
        self._entered.enter_context(variant.entered())
        if variant.rounds is not None:
            variant.restart()
            variant.ready()
        self._context.phases.restart()
        self._context.watchdog.active = True
        self._context.watchdog.begin(self._context.phases.phase)
        self._context.state("running")

    def _pair(self, variant: Variant) -> None:
        """Run a block of the baseline and one of the segment between two steps."""
        context = self._context
        self._flush(wait=True)
        if variant.trainer is None:
            self._output = None  # free it: the baseline may need its memory
        segment = context.segment
        self._entered.close()
        context.state("running", "Pairing with the baseline")
        self.steps += self._pairing.run(variant)
        self._entered.enter_context(variant.entered())
        context.segment = segment
        context.set_variant(variant)
        if context.phases.phase is not Phase.STEADY:
            context.phases.restart()
        blocks.settle(context, (variant.ready, variant.step))
        context.state("running")

    # Stepping

    def _step(self) -> None:
        """Step until a command waits; raises RunEnded at a limit."""
        context, variant = self._context, self._variant
        assert variant is not None
        wire, phases, watchdog = context.wire, context.phases, context.watchdog
        numbers = self._numbers
        step, ready, pairing = variant.step, variant.ready, self._pairing
        lap = context.clock.lap
        limit = self._start.steps if self._start.steps is not None else float("inf")
        now_ns = flushed_ns = 0
        context.clock.begin()
        while not wire.waiting and self.steps < limit:
            if ready():
                if numbers.due(variant.steps_to_settle(), self._steady):
                    self._check_numbers(variant)
                context.clock.begin()
            self._output = None  # free it: the step may need its memory
            self._output = step()
            phase = phases.step_phase(now_ns)
            now_ns = watchdog.beat_ns = lap(phase)
            self.steps += 1
            if now_ns - flushed_ns > FLUSH_NS:
                flushed_ns = now_ns
                self._flush()
                if self._deadline_ns is not None and now_ns > self._deadline_ns:
                    break
                if variant.rounds is None and numbers.due(variant.steps_to_settle(), self._steady):
                    self._check_numbers(variant)
                elif pairing.due():
                    self._pair(variant)
                context.clock.begin()
        else:
            if self.steps < limit:
                return
        self._leave(last=True)
        raise RunEnded("done")

    def _flush(self, *, wait: bool = False) -> None:
        context, variant = self._context, self._variant
        assert variant is not None
        laps = context.clock.drain(wait=wait)
        context.send_steps(laps)
        self._pairing.see(laps)
        if self._metrics is not None:
            self._metrics.poll(self.steps)
        output, finite = self._output, self._finite
        if finite is not None and output is not None and finite.poll(output, variant.batches.index):
            self._not_finite()
        if self._text is not None:
            self._text.poll()
        steady = [lap for lap in laps if lap.phase == Phase.STEADY]
        self._steady += len(steady)
        if steady and not math.isnan(self._least_ms):
            self._report_impossible_steps(statistics.median(lap.step_ms for lap in steady))
        self._evidence.look(variant, self._steady)

    def _report_impossible_steps(self, step_ms: float) -> None:
        """Report, once a segment, that its steps are faster than the device can run them."""
        if why := impossible(step_ms, self._least_ms, self._context.device.type):
            self._least_ms = math.nan
            self._facts(**{INVALID: why})
            self._context.note("warning", f"the step times are INVALID: {why}")

    def _infinities(self, batch: int) -> masked_inf.Counts | None:
        """Return the counts that one batch's outputs may have, in a pause between two steps."""
        context, variant = self._context, self._variant
        if (
            variant is None
            or variant.trainer is not None
            or not variant.situation.workload.feeds
            or variant.rounds is not None
        ):
            return None  # a loss, or tokens
        with context.unwatched():
            try:
                return masked_inf.expected(variant, batch)
            finally:
                free_memory()
                context.phases.restart()

    def _not_finite(self) -> None:
        """Report, once a segment, that the results have become meaningless."""
        context = self._context
        assert self._variant is not None
        quantity = "loss" if self._variant.trainer is not None else "output"
        context.wire.send(
            with_fix(suggested_fixes.not_finite(quantity), self.configuration, context.device)
        )

    # Commands

    def _handle_commands(self) -> None:
        toggles: dict[str, str] = {}
        while (command := self._context.wire.pending()) is not None:
            match command:
                case protocol.Apply():
                    toggles |= command.toggles
                case protocol.Pause():
                    self._apply(toggles)  # commands during the pause come later
                    toggles = {}
                    self._pause()
                case protocol.Resume():
                    pass
                case protocol.Predict():
                    self._predict(command)
                case protocol.Baseline():
                    self._pairing.choose(command.configuration)
                case _:
                    self._end(command)
        self._apply(toggles)

    def _pause(self) -> None:
        context = self._context
        self._flush(wait=True)
        self._pairing.end()
        with context.unwatched():
            context.state("paused")
            while not isinstance(command := context.wire.next(), protocol.Resume):
                match command:
                    case protocol.Apply():
                        self._apply(command.toggles)
                        self._flush(wait=True)
                        context.watchdog.active = False
                        context.state("paused")
                    case protocol.Pause():
                        pass
                    case protocol.Predict():
                        context.answer(command)
                    case protocol.Baseline():
                        self._pairing.choose(command.configuration)
                    case _:
                        self._end(command)
        context.state("running")

    def _predict(self, request: protocol.Predict) -> None:
        """Answer between two steps; the time belongs to neither."""
        self._flush(wait=True)
        with self._context.unwatched():
            self._context.answer(request)
        self._context.state("running")

    def _apply(self, toggles: dict[str, str]) -> None:
        assert self._situation is not None
        before = self._situation.configuration
        changed = {
            name: option for name, option in toggles.items() if before.toggles.get(name) != option
        }
        if not changed:
            return
        self._context.note("toggle", _describe(changed))
        self._switch(msgspec.structs.replace(before, toggles={**before.toggles, **changed}))

    def _end(self, command: protocol.Command) -> None:
        cancelled = isinstance(command, protocol.Cancel)
        self._leave(last=True, cancelled=cancelled)
        if cancelled:
            raise Cancelled
        passed_on = None if isinstance(command, protocol.Stop) else command
        raise RunEnded("stopped", passed_on)

    def _facts(self, **ledger: Scalar) -> None:
        self._context.wire.send(protocol.Facts(segment=self._context.segments - 1, ledger=ledger))

    def _send_evidence(self, evidence: list[Evidence]) -> None:
        segment = self._context.segments - 1
        self._context.wire.send(protocol.EvidenceFound(segment=segment, evidence=evidence))


def _describe(changed: dict[str, str]) -> str:
    toggles = all_toggles()
    parts = [
        f"{toggles[name].title}: {toggles[name].options.get(option, option)}"
        if name in toggles
        else f"{name}: {option}"
        for name, option in changed.items()
    ]
    return ", ".join(parts)
