"""What a profile says beside its rows: notes, memory at the peak with its estimate, the trace."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import BinaryIO

from sessions import breakdown
from sessions.model import Scalar
from workbench.runner.arm import Arm
from workbench.runner.blocks import TimedBlock
from workbench.runner.probes import recordings
from workbench.runner.profiling import provenance, trace
from workbench.runner.profiling.compiled import name_compiled
from workbench.runner.profiling.trace import Trace
from workbench.runner.resolve import footprint
from workbench.runner.toggles import Situation
from workbench.runner.toggles.compile import WITH_GRAPHS

BACK_TO_NORMAL = 0.03  # by which steps after the profiler may differ from those before


def is_compiled(arm: Arm) -> bool:
    """Whether the arm's modules run as compiled code, and not only an operator that some call."""
    return arm.situation.option("compile") != "off" and arm.compiles.graphs > 0


def has_inductors_graphs(arm: Arm) -> bool:
    """Whether Inductor replays CUDA graphs that it recorded for the arm."""
    return arm.situation.option("compile") in WITH_GRAPHS and arm.compiles.recordings > 0


def read(path: Path, arm: Arm) -> Trace:
    """The trace of an arm's marked steps, what Inductor generated given to the modules too."""
    situation = arm.situation
    found = trace.read(path, situation.device.type)
    if is_compiled(arm):
        modules = {name: type(module).__name__ for name, module in arm.model.named_modules()}
        name_compiled(found, provenance.known(), modules, has_loss=situation.workload.trains)
    return found


def notes(arm: Arm, before: TimedBlock, found: Trace) -> list[Scalar]:
    """What a reader of the tables must know; ``before`` ran without the profiler."""
    told: list[Scalar] = []
    if is_compiled(arm):
        told.append(
            "torch.compile fuses operators of several modules into one kernel: its time is told "
            "for the innermost module that holds them all."
        )
        if found.untold:
            told.append(f"(compiled code) is what no module could be told for: {found.untold}.")
    inductors = has_inductors_graphs(arm)
    if inductors and not recordings.can_launch(arm.situation.device.index):
        told.append(
            "Inductor replays CUDA graphs of its own, and this version of torch does not show how "
            "to run them otherwise: their kernels are not told by module, nor their pools by role."
        )
    elif inductors or getattr(arm.step, "uncaptured", None):
        told.append(
            "A CUDA graph is replayed as a whole: its kernels are told by module where they are "
            "those of the same step run once without the graph. So is its memory by role; what the "
            "graph's pool has beyond that is told as private pools."
        )
    if before.void:
        told.append(f"The steps that were timed without the profiler do not count: {before.void}.")
    return told


def disturbed(before: TimedBlock, after: TimedBlock) -> str:
    """Whether steps after the profiler are as fast as they were before it; empty where they are."""
    ratio = after.median_ms / before.median_ms
    if abs(ratio - 1) <= BACK_TO_NORMAL:
        return ""
    return (
        f"Steps after the profiler take {ratio:.2f} of what they took before it: start a new "
        "runner before you time anything."
    )


def peak_by_role(
    course: dict[str, list[float]], situation: Situation
) -> dict[str, list[float | str | None]]:
    """The table ``peak`` of a profile, from the course of memory over the step."""
    totals = [sum(held) for held in zip(*(course[role] for role in breakdown.ROLES), strict=True)]
    # A graph's pool is held all the time: its peak is where the step needs most of it.
    place = max(range(len(totals)), key=lambda n: (totals[n], -course["private_pools"][n]))
    estimated = _estimate(situation)
    return {
        "role": list(breakdown.ROLES),
        "bytes": [course[role][place] for role in breakdown.ROLES],
        "estimate": [estimated.get(role) for role in breakdown.ROLES],
    }


def _estimate(situation: Situation) -> dict[str, float]:
    """The estimate in the roles that are measured, where there is one."""
    found = footprint(situation)
    if found is None:
        return {}
    # Without a backward pass nothing is kept for one: what is estimated are temporaries.
    working = "activations" if situation.workload.trains else "workspace"
    return {
        "parameters": found.weights + found.tables,
        "gradients": found.gradients,
        "optimizer": found.optimizer,
        working: found.activations,
        "other": found.cache + found.workspaces,
    }


def keep(path: Path, file: Path) -> None:
    """Put the trace where it was asked for, whole or not at all; raises ``OSError``."""
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
