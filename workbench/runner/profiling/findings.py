"""Results of a profile beside its rows: notes, memory at the peak with its estimate, the trace."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import BinaryIO

from sessions.model import Scalar
from sessions.studies import breakdown
from sessions.tracing import trace
from sessions.tracing.trace import Trace
from workbench.runner.config.estimate import footprint
from workbench.runner.experiments.blocks import TimedBlock
from workbench.runner.profiling import provenance
from workbench.runner.profiling.compiled import name_compiled
from workbench.runner.profiling.probes import recordings
from workbench.runner.toggles import (
    Situation,
    Trait,
)
from workbench.runner.variants.variant import Arm

BACK_TO_NORMAL = 0.03  # tolerated relative difference between steps before and after the profiler


def is_compiled(arm: Arm) -> bool:
    """Return whether the arm's modules are compiled, not only operators that they call."""
    return arm.situation.has(Trait.COMPILED) and arm.compiles.graphs > 0


def has_inductors_graphs(arm: Arm) -> bool:
    """Return whether Inductor replays CUDA graphs that it recorded for the arm."""
    return arm.situation.has(Trait.REPLAYED) and arm.compiles.recordings > 0


def read(path: Path, arm: Arm) -> Trace:
    """Read the trace of an arm's marked steps, with Inductor's kernels attributed to modules."""
    situation = arm.situation
    result = trace.read(path, situation.device.type)
    if is_compiled(arm):
        modules = {name: type(module).__name__ for name, module in arm.model.named_modules()}
        name_compiled(result, provenance.known(), modules, has_loss=situation.workload.trains)
    return result


def notes(arm: Arm, before: TimedBlock, result: Trace) -> list[Scalar]:
    """Return what a reader of the tables must know; ``before`` ran without the profiler."""
    lines: list[Scalar] = []
    if is_compiled(arm):
        lines.append(
            "torch.compile fuses operators of several modules into one kernel. Its time counts "
            "for the innermost module that contains them all."
        )
        if result.untold:
            lines.append(f"(compiled code) could not be attributed to a module: {result.untold}.")
    inductors = has_inductors_graphs(arm)
    if inductors and not recordings.can_launch(arm.situation.device.index):
        lines.append(
            "This version of torch offers no way to run Inductor's own CUDA graphs kernel by "
            "kernel: their kernels are not listed by module, nor their memory by role."
        )
    elif inductors or getattr(arm.step, "uncaptured", None):
        lines.append(
            "A CUDA graph is replayed as a single launch. Its kernels are listed by module, and "
            "its memory by role, by comparison with the same step without the graph. Memory that "
            "the graph's pool has beyond that step is listed as private pools."
        )
    if before.void:
        lines.append(f"The steps that were timed without the profiler do not count: {before.void}.")
    return lines


def disturbed(before: TimedBlock, after: TimedBlock) -> str:
    """Return a warning if steps after the profiler differ in speed from those before, else ""."""
    ratio = after.median_ms / before.median_ms
    if abs(ratio - 1) <= BACK_TO_NORMAL:
        return ""
    return (
        f"Steps after the profiler take {ratio:.2f} times as long as before it: start a new "
        "runner before you time anything."
    )


def peak_by_role(
    course: dict[str, list[float]], situation: Situation
) -> dict[str, list[float | str | None]]:
    """Return the table ``peak`` of a profile from the memory during the step."""
    totals = [sum(sizes) for sizes in zip(*(course[role] for role in breakdown.ROLES), strict=True)]
    # A graph's pool exists all the time: its peak is where the step uses most of it.
    peak = max(range(len(totals)), key=lambda n: (totals[n], -course["private_pools"][n]))
    estimated = _estimate(situation)
    return {
        "role": list(breakdown.ROLES),
        "bytes": [course[role][peak] for role in breakdown.ROLES],
        "estimate": [estimated.get(role) for role in breakdown.ROLES],
    }


def _estimate(situation: Situation) -> dict[str, float]:
    """Return the estimate by measured role; empty if there is none."""
    estimate = footprint(situation)
    if estimate is None:
        return {}
    # Without a backward pass no activations are saved for it: the estimate is of temporaries.
    working = "activations" if situation.workload.trains else "workspace"
    return {
        "parameters": estimate.weights + estimate.tables,
        "gradients": estimate.gradients,
        "optimizer": estimate.optimizer,
        working: estimate.activations,
        "other": estimate.cache + estimate.workspaces,
    }


def keep(path: Path, file: Path) -> None:
    """Copy the trace to ``file`` completely or not at all; raise ``OSError`` on failure."""
    partial = file.with_name(f".{file.name}.partial")
    try:
        with path.open("rb") as source, _opened(partial, file.suffix == ".gz") as target:
            shutil.copyfileobj(source, target)
        partial.replace(file)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _opened(path: Path, compressed: bool) -> gzip.GzipFile | BinaryIO:
    return gzip.GzipFile(path, "wb", compresslevel=5) if compressed else path.open("wb")
