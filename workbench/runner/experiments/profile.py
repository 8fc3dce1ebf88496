"""A run that profiles: separate, marked steps under torch.profiler, never inside timed blocks.

Each configuration is built, warmed up and timed without a profiler. Then some steps run under it,
with marked modules. The idle time of the GPU is the *unprofiled* step time less the kernels' time,
because the profiler makes the host slower, but hardly the kernels.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity

from models import Model
from sessions.columns import TableColumns
from sessions.numbers import counted
from sessions.studies import breakdown
from sessions.tracing import sums, timeline, trace
from sessions.tracing.trace import Trace
from workbench import protocol
from workbench.runner.building.graph_pools import resident_bytes
from workbench.runner.building.labels import label
from workbench.runner.config.estimate import footprint
from workbench.runner.context import RunnerContext
from workbench.runner.environment import host
from workbench.runner.experiments.paired import blocks
from workbench.runner.experiments.paired.blocks import Contender, TimedBlock
from workbench.runner.experiments.paired.interleaving import Alternation
from workbench.runner.experiments.study_sender import Facts, StudySender
from workbench.runner.failures import Mistake, unwritten
from workbench.runner.interfaces import Situation, Trait
from workbench.runner.profiling import findings, marks, roles
from workbench.runner.profiling.probes import recordings
from workbench.runner.toggles.compile import beside_blocks, repeated_blocks
from workbench.runner.variants.compiles import Compiles
from workbench.runner.variants.variant import Variant
from workbench.runner.workloads import Step

MOST_STEPS = 100
TIMED_S = 1.0  # seconds of steps without the profiler, before it and after it
BUSY = "These steps are being profiled; stop before changing a toggle."


@dataclass(frozen=True)
class _Traced:
    """The traced steps of one configuration."""

    trace: Trace
    memory: dict[str, list[float]]  # columns of a step: ``t_ms``, and bytes by role
    step_us: float  # duration of a step with the profiler
    file: Path | None  # the saved trace


class ProfileRun:
    """Profiles one configuration after another."""

    def __init__(self, context: RunnerContext, command: protocol.Profile) -> None:
        self._context = context
        self._command = command
        self.steps = 0

    def execute(self) -> None:
        """Profile all; raises ``Mistake``, ``Cancelled``, ``RunEnded`` or what failed."""
        command, context = self._command, self._context
        self._check()
        situations = context.resolve(*command.configurations)
        context.variants.keep_only(*situations)
        files: list[Path | None] = [Path(trace_file) for trace_file in command.traces]
        files = files or [None] * len(situations)
        try:
            for number, (situation, file) in enumerate(zip(situations, files, strict=True)):
                self._context.progress("profiling", number / len(situations))
                self._profile(situation, file)
            self._context.progress("profiling", 1.0)
        finally:
            context.watchdog.active = False

    def _check(self) -> None:
        command = self._command
        if not command.configurations:
            raise Mistake("configurations: none was given; a profile needs at least one")
        if not 1 <= command.steps <= MOST_STEPS:
            raise Mistake(f"steps = {command.steps} is outside of 1 to {MOST_STEPS}")
        if len(command.traces) not in (0, len(command.configurations)):
            raise Mistake(
                f"traces: {counted(len(command.traces), 'file')} for "
                f"{counted(len(command.configurations), 'configuration')}; give a file for each "
                "configuration, or none"
            )
        for file in map(Path, command.traces):
            if not file.parent.is_dir():
                raise Mistake(
                    f"{file}: there is no folder {file.parent} on {host()} to save the trace in"
                )

    # One configuration

    def _profile(self, situation: Situation, file: Path | None) -> None:
        context = self._context
        turns = Alternation(context, TIMED_S, 1, BUSY)
        contender = Contender(0, 0, situation, "Profile")
        turns.contenders = [contender]
        turns.begin(contender)
        turns.settle(contender)
        context.state("running", "Timing steps without the profiler")
        timed: list[TimedBlock] = []
        turns.block(contender, timed.append)
        before = timed[-1]
        self.steps += turns.steps
        variant = contender.variant
        assert variant is not None
        compilation = _compilation(situation, variant.compiles, variant.step)
        peak = self._peak(variant)
        context.state("running", "Profiling")
        context.watchdog.active = False  # reading a trace takes long, and is no hang
        traced = self._trace(variant, compilation, turns, file)
        context.watchdog.active = True
        context.watchdog.begin(context.phases.phase)
        context.state("running", "Timing steps after the profiler")
        turns.warm_up(contender)
        # They may be slower, and so are no steady steps of the segment.
        while (after := blocks.run_block(context, contender, 0)) is None:
            turns.handle_commands()
        recorded = traced.trace
        notes = findings.notes(compilation, context.device, before.void, recorded)
        disturbed = findings.disturbed(before.median_ms, after.median_ms)
        if situation.on_gpu and disturbed:
            notes.append(disturbed)
            context.wire.send(protocol.Note(kind="warning", text=disturbed))
        busy_us = math.nan
        if situation.on_gpu:
            busy_us = sums.busy_us(recorded) / len(recorded.steps)
        context.predictor.profiled(situation, max(0.0, 1 - busy_us / (1e3 * before.median_ms)))
        self._send(situation, traced, {
            "step_us": 1e3 * before.median_ms,
            "after_us": 1e3 * after.median_ms,
            "profiled_us": traced.step_us,
            "busy_us": busy_us,
            "peak_bytes": peak,
            "notes": notes,
        })  # fmt: skip

    def _trace(
        self,
        variant: Variant,
        compilation: findings.Compilation,
        turns: Alternation,
        file: Path | None,
    ) -> _Traced:
        """Trace steps with the profiler, and save the trace in ``file`` if it is given.

        Steps with CUDA graphs are traced once more without them, to name the kernels of a replay.
        """
        context, situation = self._context, variant.situation
        with tempfile.TemporaryDirectory(prefix="workbench-profile-") as folder:
            path = Path(folder) / "trace.json"
            read = functools.partial(
                findings.read,
                path,
                variant.model,
                situation.device,
                compiled=compilation.modules,
                trains=situation.workload.trains,
            )
            steps = self._command.steps
            known, step_us = self._record(variant, path, variant.step, steps, compilation)
            turns.handle_commands()
            context.state("running", "Reading the trace")
            recorded = read()
            if file is not None:
                try:
                    findings.keep(path, file)
                except OSError as error:
                    context.wire.send(unwritten("The trace", file, error))
                    file = None
            memory = roles.memory_over_step(recorded, known)
            if (uncaptured := self._without_graphs(variant, path, compilation)) is not None:
                plain = read()
                sums.name_replayed(recorded, plain)
                recorded.unattributed = recorded.unattributed or plain.unattributed
                memory = roles.replayed(roles.memory_over_step(plain, uncaptured), known)
        return _Traced(recorded, memory, step_us, file)

    def _peak(self, variant: Variant) -> float:
        """Return the peak bytes over an unprofiled step, with graph pools; NaN if unknown."""
        if self._context.device.type != "cuda":
            return math.nan
        with variant.entered():
            torch.cuda.reset_peak_memory_stats(self._context.device)
            variant.step()
            self._context.synchronize()
        resident = resident_bytes(variant)
        return float(torch.cuda.max_memory_allocated(self._context.device) + resident)

    def _without_graphs(
        self, variant: Variant, path: Path, compilation: findings.Compilation
    ) -> roles.Known | None:
        """Write the trace of the same step without its CUDA graphs, if it has any."""
        if uncaptured := getattr(variant.step, "uncaptured", None):
            return self._record(variant, path, uncaptured, 1, compilation)[0]
        index = self._context.device.index
        if not (compilation.recorded and recordings.can_launch(index)):
            return None
        with recordings.launched(index):
            return self._record(variant, path, variant.step, 1, compilation)[0]

    def _record(
        self,
        variant: Variant,
        path: Path,
        step: Step,
        steps: int,
        compilation: findings.Compilation,
    ) -> tuple[roles.Known, float]:
        """Run the marked steps and write their trace; return the known memory and the step time."""
        context = self._context
        on_gpu = context.device.type == "cuda"
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
        if on_gpu:
            # Otherwise CUPTI stays attached, and every later step of this process is slower.
            os.environ.setdefault("TEARDOWN_CUPTI", "1")
        gradients: list[set[int]] = []
        blocks_compiled = variant.situation.has(Trait.COMPILED_BLOCKS)
        optimizer = None if variant.trainer is None else variant.trainer.optimizer
        with variant.entered():
            known = known_memory(variant, context.device)
            profiler = torch.profiler.profile(activities=activities, profile_memory=True)
            with (
                _modules_marked(variant.model, compilation.modules, blocks_compiled),
                _gradients_noted(variant.model, optimizer, gradients),
                profiler,
            ):
                variant.ready()
                step()  # the profiler initialises itself in this step
                context.synchronize()
                gradients.clear()
                began = torch.cuda.Event(enable_timing=True) if on_gpu else None
                ended = torch.cuda.Event(enable_timing=True) if on_gpu else None
                began_ns = time.perf_counter_ns()
                if began is not None:
                    began.record()
                for _ in range(steps):
                    with record_function(trace.STEP):
                        variant.ready()
                        step()
                if ended is not None:
                    ended.record()
                context.synchronize()
                profiled_us = (time.perf_counter_ns() - began_ns) / 1e3
            if began is not None and ended is not None:
                profiled_us = 1e3 * began.elapsed_time(ended)
        profiler.export_chrome_trace(str(path))
        known.gradients = gradients
        self.steps += steps
        return known, profiled_us / steps

    # Sending

    def _send(self, situation: Situation, traced: _Traced, facts: Facts) -> None:
        """Send the profile as a study; ``facts`` are completed, and those that are NaN left out."""
        device, recorded = self._context.device, traced.trace
        configuration = situation.configuration
        text = label(configuration, device)
        request: Facts = {
            "configuration": msgspec.json.encode(configuration).decode(),
            "label": text,
            "steps": self._command.steps,
            "device": device.type,
        }
        study = StudySender(self._context)
        study.begin(breakdown.KIND, f"{configuration.title}: {text}", request)
        rows = sums.device_rows(recorded) if situation.on_gpu else sums.host_rows(recorded)
        least, least_facts = self._least(situation)
        trains = situation.workload.trains
        tables: dict[str, TableColumns] = {
            "kernels": sums.kernel_columns(rows, len(recorded.steps)),
            "least": least,
            "gaps": sums.gap_columns(recorded),
            "memory": {role: [*values] for role, values in traced.memory.items()},
            "peak": findings.peak_by_role(traced.memory, footprint(situation), trains=trains),
            **timeline.tables(recorded),
        }
        for table, columns in tables.items():
            if next(iter(columns.values())):
                study.rows(table, columns)
        facts |= least_facts
        if traced.file is not None:
            facts["trace"] = str(traced.file)
        finite = {k: v for k, v in facts.items() if not isinstance(v, float) or math.isfinite(v)}
        study.facts(**finite)

    def _least(self, situation: Situation) -> tuple[TableColumns, Facts]:
        """Return the least work of a step; the ceilings, and why some work is unknown."""
        predictor = self._context.predictor
        least, why = predictor.rows(situation)
        facts: Facts = {"no_least": why} if why else {}
        if least:
            rates = predictor.ceilings.flops_per_s
            facts |= {
                "ceiling_bytes_per_s": predictor.ceilings.bytes_per_s,
                "ceiling_dtypes": [*rates],
                "ceiling_flops_per_s": [*rates.values()],
            }
        columns: TableColumns = {
            "name": [row.name for row in least],
            "calls": [row.calls for row in least],
            "bytes": [row.bytes for row in least],
            "flops": [row.flops for row in least],
            "us": [row.us for row in least],
        }
        return columns, facts


def _compilation(situation: Situation, compiles: Compiles, step: Step) -> findings.Compilation:
    return findings.Compilation(
        modules=situation.has(Trait.COMPILED) and compiles.graphs > 0,
        recorded=situation.has(Trait.REPLAYED) and compiles.recordings > 0,
        captured=bool(getattr(step, "uncaptured", None)),
    )


def known_memory(variant: Variant, device: torch.device) -> roles.Known:
    """Return the memory of a variant between two steps."""
    replicate = None if variant.divided is None else variant.divided.replicate
    return roles.known(
        device,
        variant.model,
        None if variant.trainer is None else variant.trainer.optimizer,
        () if replicate is None else replicate.tensors(),
        (variant.batches.inputs, variant.batches.targets),
        resident_bytes(variant) if device.type == "cuda" else 0,
    )


def _modules_marked(
    model: Model, modules_compiled: bool, blocks_compiled: bool
) -> AbstractContextManager[None]:
    """Mark modules if that changes nothing; in compiled code, only compiled blocks."""
    if not modules_compiled:
        return marks.modules_marked(model)
    if blocks_compiled:
        called = itertools.chain.from_iterable(beside_blocks(model).values())
        return marks.blocks_marked(model, repeated_blocks(model), called)
    return contextlib.nullcontext()


def _gradients_noted(
    model: Model, optimizer: torch.optim.Optimizer | None, gradients: list[set[int]]
) -> AbstractContextManager[None]:
    """Append the addresses of the gradients before each update of the optimizer, if any."""
    if optimizer is None:
        return contextlib.nullcontext()
    return marks.before_updates(
        optimizer, lambda: gradients.append(roles.gradient_addresses(model.parameters()))
    )
