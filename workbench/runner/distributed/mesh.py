"""The device mesh: which ranks share a batch, shards, layers or a pipeline.

Every kind of parallelism is an axis, and they combine: the product of their sizes is the number of
ranks. Neighbouring ranks differ in the last axis first, so that the kinds that communicate most
stay within one host.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Layout(NamedTuple):
    """Sizes of the axes, or the coordinates of a rank on them, from the outermost to the innermost.

    ``replicate`` and ``shard`` share the batch: weights are replicated along the former, and
    sharded (ZeRO, FSDP) along the latter. ``context`` splits sequences; weights are replicated.
    ``expert`` shares the batch and has each expert once; all other weights are replicated.
    """

    pipeline: int = 1
    replicate: int = 1
    context: int = 1
    expert: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def ranks(self) -> int:
        """Product of the axes."""
        return math.prod(self)

    @property
    def data(self) -> int:
        """Number of ranks that share a batch."""
        return self.replicate * self.expert * self.shard

    @property
    def replicas(self) -> int:
        """Number of ranks with the same weights, each of which has other tokens."""
        return self.replicate * self.context

    @property
    def averaged(self) -> int:
        """Number of ranks over which gradients are averaged; of experts only over replicas."""
        return self.replicas * self.expert

    def coordinates(self, rank: int) -> Layout:
        """Return where a rank is on each axis."""
        coordinates = []
        for size in reversed(self):
            rank, index = divmod(rank, size)
            coordinates.append(index)
        return Layout(*reversed(coordinates))

    def data_rank(self, rank: int) -> int:
        """Return which share of the batch a rank has."""
        at = self.coordinates(rank)
        return (at.replicate * self.expert + at.expert) * self.shard + at.shard

    def first_of_stage(self, stage: int) -> int:
        """Return the first rank of a pipeline stage."""
        return stage * (self.ranks // self.pipeline)


ONE_RANK = Layout()
CHUNKS = 2  # chunks per rank of an interleaved pipeline
IN_CHUNKS = ("interleaved", "zero_bubble")  # schedules


def chunks_of(layout: Layout, schedule: str) -> int:
    """Return in how many chunks each rank of a pipeline computes its blocks."""
    return CHUNKS if layout.pipeline > 1 and schedule in IN_CHUNKS else 1


class Mesh:
    """torch's device mesh of a layout; ``group`` has its ranks, which are the first ones."""

    def __init__(self, layout: Layout, device_type: str) -> None:
        from torch.distributed.device_mesh import DeviceMesh

        self.layout = layout
        ranks = layout.ranks
        self.group: dist.ProcessGroup | None = None  # the group of all ranks
        if ranks < dist.get_world_size():
            self.group = dist.new_group(list(range(ranks)))
        axes = [name for name, size in zip(Layout._fields, layout, strict=True) if size > 1]
        shape = [getattr(layout, name) for name in axes] or [1]
        numbers = torch.arange(ranks).view(shape)
        self._mesh = DeviceMesh(device_type, numbers, mesh_dim_names=tuple(axes or ["replicate"]))
        self._axes = axes
        # A separate group: along the context, the model communicates while gradients are averaged.
        self._averaging: dist.ProcessGroup | None = None
        self.replicas: dist.ProcessGroup | None = None  # the ranks that have the same experts
        if layout.averaged > layout.replicate:
            numbers = torch.arange(ranks).view(layout.pipeline, layout.averaged, -1)
            self._averaging = _subgroup(numbers.transpose(1, 2))
        if layout.expert > 1 and layout.replicas > 1:
            numbers = torch.arange(ranks).view(layout.pipeline, layout.replicas, -1)
            self.replicas = _subgroup(numbers.transpose(1, 2))

    def axes(self, *names: str) -> DeviceMesh:
        """Return the mesh along axes that have more than one rank."""
        present = tuple(name for name in names if name in self._axes)
        return self._mesh if present == tuple(self._axes) else self._mesh[present]

    def averaging(self) -> dist.ProcessGroup:
        """Return the group of ranks over which gradients are averaged."""
        return self.group_of("replicate") if self._averaging is None else self._averaging

    def group_of(self, name: str) -> dist.ProcessGroup:
        """Return the process group along an axis that has more than one rank."""
        return self.axes(name).get_group()


def _subgroup(numbers: torch.Tensor) -> dist.ProcessGroup | None:
    """Create a group for each row of ranks, of any number of axes; return this rank's."""
    group, _ = dist.new_subgroups_by_enumeration(numbers.flatten(0, -2).tolist())
    return group


_meshes: dict[tuple[Layout, str], Mesh] = {}


def get(layout: Layout, device: torch.device) -> Mesh | None:
    """Return the mesh of a layout, if it exists."""
    return _meshes.get((layout, device.type))


def of(layout: Layout, device: torch.device) -> Mesh:
    """Return the mesh of a layout; all ranks of the world create it at the same time."""
    key = (layout, device.type)
    if key not in _meshes:
        _meshes[key] = Mesh(layout, device.type)
    return _meshes[key]


def forget() -> None:
    """Drop all meshes: their process groups are gone."""
    _meshes.clear()
