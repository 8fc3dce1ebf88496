"""The engine: executes commands, one run after another, and survives their failures."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from sessions.model import Configuration
from sessions.numbers import counted
from sessions.sizes import size_text
from workbench import plugins, protocol
from workbench.runner import triton_cache
from workbench.runner.catalogue import catalogue
from workbench.runner.config.installed_plugins import register_plugins
from workbench.runner.config.resolve import availability
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.attribute import AttributeRun
from workbench.runner.experiments.bench import BenchRun
from workbench.runner.experiments.compare import CompareRun
from workbench.runner.experiments.measure_ceilings import CeilingsRun
from workbench.runner.experiments.optimize import OptimizeRun
from workbench.runner.experiments.profile import ProfileRun
from workbench.runner.experiments.run import Run, RunEnded
from workbench.runner.experiments.scale import ScaleRun
from workbench.runner.experiments.sweep import SweepRun
from workbench.runner.experiments.validate import ValidateRun
from workbench.runner.failures import Cancelled, explain
from workbench.runner.instruments.host_facts import usable_cores
from workbench.runner.suggested_fixes import with_fix
from workbench.runner.wire import Wire


class LongRun(Protocol):
    """The run of a command: it ends when it is done, or with one of the exceptions of ``run``."""

    @property
    def steps(self) -> int:
        """Steps so far."""

    def execute(self) -> None:
        """Run to the end."""


RUNS: Mapping[type[protocol.Command], Callable[[RunnerContext, Any], LongRun]] = {
    protocol.Start: Run,
    protocol.Bench: BenchRun,
    protocol.Compare: CompareRun,
    protocol.Attribute: AttributeRun,
    protocol.Optimize: OptimizeRun,
    protocol.Validate: ValidateRun,
    protocol.Profile: ProfileRun,
    protocol.Sweep: SweepRun,
    protocol.Scale: ScaleRun,
    protocol.MeasureCeilings: CeilingsRun,
}
LOST_CONTEXT = 3  # exit code: the GPU's context was lost, and only a new process has one


class Engine:
    """Serves one wire with one device."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
            # OpenMP's threads spin at barriers: if the window takes a core away from one of
            # them all wait, and a step of 30 ms was seen to take a second. One core is left free.
            torch.set_num_threads(max(1, usable_cores() - 1))
        self._context = RunnerContext(wire, device)

    def serve(self) -> int:
        """Execute commands until Quit; return the exit code."""
        device = self._context.device
        register_plugins()
        self._wire.answer = lambda check: availability(check.configuration, device)
        self._wire.send(catalogue(device, self._wire.created))
        for plugin in plugins.skipped():
            self._context.note("warning", plugin.sentence)
        self._context.roof.at_start()
        self._context.start()
        self._context.state("idle")
        command: protocol.Command | None = None
        while not isinstance(command, protocol.Quit):
            passed_on = None
            if command is not None and type(command) in RUNS:
                failure, passed_on = self._run(command)
                if failure is not None and failure.fatal:
                    return LOST_CONTEXT
                self._context.state("idle")
            elif isinstance(command, protocol.Predict):
                self._context.answer(command)
                self._context.state("idle")
            elif isinstance(command, protocol.Inspect):
                self._inspect(command.configuration)
                self._context.state("idle")
            elif isinstance(command, protocol.ClearTritonCache):
                self._clear_triton_cache()
                self._context.state("idle")
            elif isinstance(command, protocol.Cancel):
                self._context.state("idle")  # the answer that prevents our termination
            # Apply, Pause, Resume and Stop were meant for a run that ended before they were read.
            command = passed_on or self._wire.next()
        return 0

    def _inspect(self, configuration: Configuration) -> None:
        """Send which options are blocked for a model as it is built, or why it cannot be built."""
        try:
            answer: protocol.Message = availability(
                configuration, self._context.device, builds=True
            )
        except BaseException as error:  # noqa: BLE001 - a model's file may raise anything
            answer = explain(error)
        self._wire.send(answer)

    def _clear_triton_cache(self) -> None:
        """Clear Triton's cache, and report its size."""
        try:
            entries, size = triton_cache.clear()
        except OSError as error:
            self._wire.send(
                protocol.Failure(
                    kind="unwritten",
                    sentence=f"Triton's cache was not cleared: {error}",
                    fix="Delete the folder's contents by hand.",
                )
            )
        else:
            self._context.note(
                "info", f"Triton's cache: {counted(entries, 'kernel')}, {size_text(size)}, deleted"
            )

    def _run(
        self, command: protocol.Command
    ) -> tuple[protocol.Failure | None, protocol.Command | None]:
        """Run one run to its end; returns what failed, if anything, and which command ended it."""
        assert isinstance(command, protocol.RunCommand)
        self._wire.send(protocol.Ordered(command=command))
        run = RUNS[type(command)](self._context, command)
        failure: protocol.Failure | None = None
        passed_on: protocol.Command | None = None
        try:
            run.execute()
            reason = "done"
        except RunEnded as end:
            reason, passed_on = end.reason, end.command
        except Cancelled:
            reason = "cancelled"
        # A model may raise anything, even SystemExit: the runner continues.
        except BaseException as error:  # noqa: BLE001
            reason, failure = "failed", explain(error)
        if failure is not None:
            configuration = getattr(run, "configuration", getattr(command, "configuration", None))
            failure = with_fix(failure, configuration, self._context.device)
            self._wire.send(failure)
            # A mistake took no memory: variants, which may have compiled for minutes, are kept.
            if not failure.fatal and failure.kind != "mistake":
                self._context.variants.forget_all()
        self._wire.send(protocol.Finished(reason=reason, steps=run.steps))
        return failure, passed_on
