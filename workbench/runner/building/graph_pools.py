"""Memory in the private pools of CUDA graphs that the allocator does not count as allocated.

The kernels of a graph read and write the addresses of its capture. Between replays the allocator
counts only live tensors of the pool as allocated. The rest looks free, but no one else can use it.
So the complete segments of the pool count: the most that any capture needed, less what tensors hold
in them, which the allocator counts already. Inductor has one pool for all graphs of a process;
configurations that share it are each charged with all of it.
"""

from __future__ import annotations

import torch

from workbench.runner.interfaces import Situation, Trait
from workbench.runner.profiling.probes import recordings
from workbench.runner.variants.variant import Variant
from workbench.runner.workloads import Step


def resident_bytes(variant: Variant) -> int:
    """Return bytes of a variant's pools that no tensor holds; takes milliseconds if it has any."""
    pools = {_captured(variant.step), _inductors(variant.situation)} - {None}
    if not pools:
        return 0
    return sum(
        segment["total_size"] - segment["allocated_size"]
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment["segment_pool_id"]) in pools
    )


def _captured(step: Step) -> tuple[int, int] | None:
    """Return the pool of a step that was captured as one graph."""
    graph: torch.cuda.CUDAGraph | None = getattr(step, "graph", None)
    return None if graph is None else tuple(graph.pool())


def _inductors(situation: Situation) -> tuple[int, int] | None:
    """Return the pool of what Inductor captured, once it has."""
    if not situation.has(Trait.REPLAYED):
        return None
    tree = recordings.manager(situation.device.index)
    return None if tree is None else tuple(tree.cuda_graphs_thread_pool)
