"""Results of a profile beside its rows: notes, memory at the peak with its estimate, the trace."""

from __future__ import annotations

import gzip
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch

from models import Footprint, Model
from sessions.columns import TableColumns
from sessions.model import Scalar
from sessions.studies import breakdown
from sessions.tracing import trace
from sessions.tracing.trace import Trace
from workbench.runner.profiling import provenance
from workbench.runner.profiling.compiled import name_compiled
from workbench.runner.profiling.probes import recordings

BACK_TO_NORMAL = 0.03  # tolerated relative difference between steps before and after the profiler


@dataclass(frozen=True)
class Compilation:
    """Compilation and capture of the marked steps.

    ``modules``: whether modules are, and not only operators that they call. ``recorded``: whether
    Inductor replays CUDA graphs that it recorded. ``captured``: whether the step is one graph.
    """

    modules: bool
    recorded: bool
    captured: bool


def read(path: Path, model: Model, device: torch.device, *, compiled: bool, trains: bool) -> Trace:
    """Read the trace of marked steps, with Inductor's kernels attributed to a model's modules."""
    result = trace.read(path, device.type)
    if compiled:
        modules = {name: type(module).__name__ for name, module in model.named_modules()}
        name_compiled(result, provenance.known(), modules, has_loss=trains)
    return result


def notes(compilation: Compilation, device: torch.device, void: str, result: Trace) -> list[Scalar]:
    """Return what a reader of the tables must know.

    ``void``: why the steps that ran without the profiler do not count; empty if they do.
    """
    lines: list[Scalar] = []
    if compilation.modules:
        lines.append(
            "torch.compile fuses operators of several modules into one kernel. Its time counts "
            "for the innermost module that contains them all."
        )
        if result.unattributed:
            lines.append(
                f"(compiled code) could not be attributed to a module: {result.unattributed}."
            )
    if compilation.recorded and not recordings.can_launch(device.index):
        lines.append(
            "This version of torch offers no way to run Inductor's own CUDA graphs kernel by "
            "kernel: their kernels are not listed by module, nor their memory by role."
        )
    elif compilation.recorded or compilation.captured:
        lines.append(
            "A CUDA graph is replayed as a single launch. Its kernels are listed by module, and "
            "its memory by role, by comparison with the same step without the graph. Memory that "
            "the graph's pool has beyond that step is listed as private pools."
        )
    if void:
        lines.append(f"The steps that were timed without the profiler are void: {void}.")
    return lines


def disturbed(before_ms: float, after_ms: float) -> str:
    """Return a warning if steps after the profiler differ in speed from those before, else ""."""
    ratio = after_ms / before_ms
    if abs(ratio - 1) <= BACK_TO_NORMAL:
        return ""
    return (
        f"Steps after the profiler take {ratio:.2f} times as long as before it: start a new "
        "runner before you time anything."
    )


def peak_by_role(
    memory: dict[str, list[float]], estimate: Footprint | None, *, trains: bool
) -> TableColumns:
    """Return the table ``peak`` of a profile from the memory during the step."""
    totals = [sum(sizes) for sizes in zip(*(memory[role] for role in breakdown.ROLES), strict=True)]
    # A graph's pool exists all the time: its peak is where the step uses most of it.
    peak = max(range(len(totals)), key=lambda n: (totals[n], -memory["private_pools"][n]))
    estimated = {} if estimate is None else estimate_by_role(estimate, trains=trains)
    return {
        "role": list(breakdown.ROLES),
        "bytes": [memory[role][peak] for role in breakdown.ROLES],
        "estimate": [estimated.get(role) for role in breakdown.ROLES],
    }


def estimate_by_role(estimate: Footprint, *, trains: bool) -> dict[str, float]:
    """Return an estimate by measured role."""
    # Without a backward pass no activations are saved for it: the estimate is of temporaries.
    working = "activations" if trains else "workspace"
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
