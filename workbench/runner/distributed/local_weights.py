"""One rank's part of a model's weights and moments, next to rank 0's full ones.

All configurations share the full weights, which stay on rank 0. A configuration of several ranks
computes with parameters of its own: replicas, shards of layers, stages or FSDP's shards. They are
loaded when the configuration is entered and stored when it is left. Nothing moves if nothing has
changed. Where rank 0 has a replica, it lies in the memory of the full weights.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from models import Model
from models.initialisation import keep_marks
from models.language_model import LanguageModel
from models.parallel.context_parallel import install as install_context
from models.parallel.expert_parallel import divide_experts, experts_of
from models.parallel.expert_parallel import install as install_exchange
from models.parallel.pipeline_stages import Stage, chain
from models.parallel.tensor_parallel_plan import WHOLE, Cut, divide
from workbench.runner.distributed import mesh as meshes
from workbench.runner.distributed.collectives import (
    EXPERT,
    TENSOR,
    AcrossRanks,
    AlongSequence,
)
from workbench.runner.distributed.context import SplitContext
from workbench.runner.distributed.experts import RankExchange
from workbench.runner.distributed.mesh import Layout, Mesh
from workbench.runner.distributed.world import rank
from workbench.runner.training.trainer import Weights

if TYPE_CHECKING:
    from models.family import Family
    from workbench.runner.interfaces import Situation

_numbers = itertools.count(1)


class Transfer(NamedTuple):
    """A weight or moment that is copied between the full weights and the ranks' parts."""

    like: Tensor  # has the shape and dtype of the full tensor
    local: Tensor | None  # None if this rank has no part of it
    full: Tensor | None  # on rank 0
    cut: Cut | None  # None if it is not sharded
    source: int  # the first rank that has a part of it


@dataclass
class _Loaded:
    """The state of the full weights that was loaded last."""

    version: int = 0
    stamp: object = None  # on rank 0


class LocalWeights:
    """This rank's parameters, by the full model's names.

    ``own`` are the parameters in memory. ``full_weights`` are the unsharded ones on rank 0, None on
    any other rank. ``names`` gives the full model's name for each local name. ``cuts`` says how
    parameters are sharded, by the full model's names. Raises ``ValueError`` for a layer that cannot
    be sharded evenly, or fewer blocks than stages.
    """

    def __init__(
        self,
        situation: Situation,
        dtype: torch.dtype,
        layout: Layout,
        replica: Weights | None,
        chunks: int = 1,
    ) -> None:
        """Allocate the parameters; they hold zeros until ``load``.

        ``replica``: full weights on this rank, whose memory replicas share; None if it has none.
        ``chunks``: the number of chunks of each stage of a pipeline.
        """
        self.layout, self._device = layout, situation.device
        self.full_weights = replica if rank() == 0 else None
        self._loaded = _Loaded()
        family, config = situation.family, situation.config
        at = layout.coordinates(rank())
        self.stages = [Stage(range(0))]
        if layout.pipeline > 1:
            self.stages = chain(family, config).stages(layout.pipeline, chunks)
        self.stage = self.stages[at.pipeline]
        self._cut_axis = EXPERT if layout.expert > 1 else TENSOR
        self._cut_ranks = getattr(layout, self._cut_axis)
        structure = family.build(config, dtype=dtype)
        weights = structure.weights()
        first_names = {id(p): name for name, p in reversed(weights.items())}  # each weight once
        self._like = {name: weights[name].detach() for name in reversed(first_names.values())}
        self._trained = {name for name in self._like if weights[name].requires_grad}
        self._stages_of = {name: [0] for name in self._like}  # indices of the stages that have it
        self.names = {name: name for name in weights}
        if layout.pipeline > 1:
            structure = self._narrow_to_stage(family, config, dtype)
        cuts: dict[str, Cut] = {}
        if layout.tensor > 1:
            cuts = divide(structure, layout.tensor, WHOLE)
        elif layout.expert > 1:
            cuts = divide_experts(structure, layout.expert)
        self.cuts = {self.names[name]: cut for name, cut in cuts.items()}
        if replica is not None and layout.ranks == layout.replicas:
            self.own = replica.alias() if rank() == 0 else replica
        else:
            self.own = Weights(_zeros(structure.weights(), situation.device))

    def _narrow_to_stage(self, family: Family, config: Any, dtype: torch.dtype) -> Model:
        """Return the structure of this rank's stage; record which stages have each parameter."""
        self._stages_of = {name: [] for name in self._like}
        for index, stage in enumerate(self.stages):
            narrowed: Model = family.build(config, dtype=dtype)
            narrowed.narrow(stage)
            names = {name: stage.full_name(name) for name in narrowed.weights()}
            for name in names.values():
                self._stages_of[name].append(index)
            if stage is self.stage:
                structure, self.names = narrowed, names
        return structure

    def model(self, situation: Situation, *, along_sequence: bool) -> Model:
        """Return a model around these weights.

        ``along_sequence``: split the residual stream between sharded layers.
        """
        model = self._sharded_model(situation, along_sequence)
        if self.layout.context > 1:
            context_rank = self.layout.coordinates(rank()).context
            install_context(model, SplitContext(self.layout.context, context_rank))
        return model

    def _sharded_model(self, situation: Situation, along_sequence: bool) -> Model:
        family, config = situation.family, situation.config
        layout = self.layout
        if layout.expert > 1:
            model = family.share_experts(config, self.own.parameters, layout.expert)
            install_exchange(model, RankExchange(layout.expert, experts_of(family, config).count))
            return model
        if layout.tensor == layout.pipeline == 1:
            shared: Model = family.share(config, self.own.parameters)
            return shared
        region = AlongSequence(layout.tensor) if along_sequence else AcrossRanks()
        stage = self.stage if layout.pipeline > 1 else None
        model = family.share_divided(config, self.own.parameters, layout.tensor, region, stage)
        if along_sequence:
            assert isinstance(model, LanguageModel)
            model.stream = region
        return model

    def alias(self) -> LocalWeights:
        """Return these weights as new parameters, without hooks, in the same memory."""
        twin = copy.copy(self)
        twin.own = self.own.alias()
        return twin

    @property
    def version(self) -> int:
        """The number of the state of the full weights that is loaded; 0 if none is."""
        return self._loaded.version

    @version.setter
    def version(self, version: int) -> None:
        self._loaded.version = version

    @property
    def mesh(self) -> Mesh:
        """The mesh, which exists before ranks compute."""
        return meshes.of(self.layout, self._device)

    @property
    def by_name(self) -> dict[str, nn.Parameter]:
        """This rank's parameters by the full model's names."""
        return {self.names[name]: value for name, value in self.own.parameters.items()}

    def cuts_of(self, axis: str) -> dict[str, Cut]:
        """Return how parameters are divided along an axis, by the full model's names."""
        return self.cuts if axis == self._cut_axis else {}

    def replicated(self) -> list[nn.Parameter]:
        """Return the parameters that every rank of a tensor group has."""
        return [value for name, value in self.by_name.items() if name not in self.cuts]

    def common(self) -> list[Tensor]:
        """Return the gradients, or parts of them, that are equal on all ranks of a tensor group."""
        gradients: list[Tensor] = []
        for name, parameter in self.by_name.items():
            if (gradient := parameter.grad) is None:
                continue
            cut, part = self.cuts.get(name), local(gradient)
            if cut is None:
                gradients.append(part)
            elif part is gradient:  # otherwise FSDP has sharded it across the sections
                gradients += cut.replicated_sections(gradient, self.layout.tensor)
        return gradients

    def on_both_ends(self) -> list[nn.Parameter]:
        """Return the parameters of this stage that another stage has too (a tied embedding)."""
        return [p for name, p in self.by_name.items() if len(self._stages_of[name]) > 1]

    def is_current(self, full_optimizer: Optimizer | None) -> bool:
        """Return True if the loaded weights and moments still equal rank 0's full ones."""
        return bool(self.version) and self._loaded.stamp == self._stamp_of(full_optimizer)

    def mark(self, full_optimizer: Optimizer | None, *, current: bool = True) -> None:
        """Record on rank 0 if the loaded weights equal the full ones."""
        if not current:
            self.version = 0
        elif self.full_weights is not None:
            self._loaded.stamp = self._stamp_of(full_optimizer)

    def next_version(self) -> int:
        """Return the number of a state that will be loaded."""
        return next(_numbers)

    @torch.no_grad()
    def load(self, part_optimizer: Optimizer | None, full_optimizer: Optimizer | None) -> int:
        """Broadcast weights and moments to all ranks' parts; return the bytes sent.

        All ranks call it at the same time. ``part_optimizer`` trains the part and
        ``full_optimizer`` the full weights; None if there is none.
        """
        moved = 0
        for transfer in self._transfers(part_optimizer, full_optimizer):
            sent = self._broadcast_full(transfer)
            moved += sent.nbytes
            if (part := transfer.local) is not None:
                _copy(self._shard(sent, part, transfer.cut), part)
        return moved

    @torch.no_grad()
    def store(self, part_optimizer: Optimizer | None, full_optimizer: Optimizer | None) -> None:
        """Gather every rank's part into the full weights and moments; all ranks call it."""
        for transfer in self._transfers(part_optimizer, full_optimizer):
            full = self._gather(transfer)
            if transfer.source:
                buffer = self._empty(transfer.like) if full is None else full.contiguous()
                dist.broadcast(buffer, src=transfer.source, group=self.mesh.group)
                full = buffer
            if transfer.full is not None and full is not None:
                _copy(full, transfer.full)

    @torch.no_grad()
    def count_differing(self) -> int:
        """Return how many parameters differ by any bit between rank 0 and another rank."""
        flags = []
        for transfer in self._transfers(None, None):
            sent = self._broadcast_full(transfer)
            same = True
            if (part := transfer.local) is not None:
                expected = self._shard(sent, part, transfer.cut)
                same = torch.equal(_bits(local(expected)), _bits(local(part)).to(sent.device))
            flags.append(not same)
        differing = torch.tensor(flags, dtype=torch.int64, device=self._device)
        dist.all_reduce(differing, dist.ReduceOp.MAX, group=self.mesh.group)
        return int(differing.sum())

    def _stamp_of(self, full_optimizer: Optimizer | None) -> object:
        full = self.full_weights
        assert full is not None
        states = () if full_optimizer is None else full_optimizer.state.values()
        versions = [p._version for p in full.parameters.values()]
        return full.entries, versions, [v._version for s in states for v in s.values()]

    def _broadcast_full(self, transfer: Transfer) -> Tensor:
        if transfer.full is not None:
            sent = transfer.full.detach().to(self._device).contiguous()
        else:
            sent = self._empty(transfer.like)
        dist.broadcast(sent, src=0, group=self.mesh.group)
        return sent

    def _shard(self, full: Tensor, part: Tensor, cut: Cut | None) -> Tensor:
        """Return this rank's part of a full tensor, sharded as ``part`` is."""
        if cut is not None:
            at = getattr(self.layout.coordinates(rank()), self._cut_axis)
            full = cut.shard(full, at, self._cut_ranks)
        if local(part) is part:
            return full
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(part, DTensor)
        return distribute_tensor(full, part.device_mesh, part.placements, src_data_rank=None)

    def _gather(self, transfer: Transfer) -> Tensor | None:
        """Return the full tensor, on the ranks that have a part of it."""
        part = transfer.local
        if part is None:
            return None
        gathered = self._unshard(part.detach())
        if transfer.cut is None:
            return gathered
        pieces = [torch.empty_like(gathered) for _ in range(self._cut_ranks)]
        dist.all_gather(pieces, gathered.contiguous(), group=self.mesh.group_of(self._cut_axis))
        full = self._empty(transfer.like)
        for number, piece in enumerate(pieces):
            transfer.cut.write_back(piece, full, number, self._cut_ranks)
        return full

    def _unshard(self, part: Tensor) -> Tensor:
        """Return a part without FSDP's sharding, on the device that communicates."""
        local_part = local(part).to(self._device)
        if local(part) is part:
            return local_part
        from torch.distributed.tensor import DTensor

        assert isinstance(part, DTensor)
        shape = {"shape": part.shape, "stride": part.stride()}
        placed = DTensor.from_local(
            local_part, part.device_mesh, part.placements, run_check=False, **shape
        )
        return placed.full_tensor()

    def _empty(self, like: Tensor) -> Tensor:
        return torch.empty(like.shape, dtype=like.dtype, device=self._device)

    def _transfers(
        self, part_optimizer: Optimizer | None, full_optimizer: Optimizer | None
    ) -> Iterator[Transfer]:
        """Yield each distinct tensor in the same order on every rank."""
        states: Mapping[Tensor, dict[str, Tensor]] = (
            {} if part_optimizer is None else part_optimizer.state
        )
        template = next(iter(states.values()), {})  # every parameter has the same kinds
        parts = self.by_name
        for name, like in self._like.items():
            part = parts.get(name)
            full = None if self.full_weights is None else self.full_weights.parameters[name]
            cut, source = self.cuts.get(name), self.layout.first_of_stage(self._stages_of[name][0])
            yield Transfer(like, part, full, cut, source)
            for kind in sorted(template) if name in self._trained else ():
                is_moment = kind != "step"  # a moment of a scalar has no dimension either
                yield Transfer(
                    like if is_moment else template[kind],
                    None if part is None else states[part][kind],
                    None
                    if full_optimizer is None or full is None
                    else full_optimizer.state[full][kind],
                    cut if is_moment else None,
                    source,
                )


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a DTensor; any other tensor unchanged."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _copy(source: Tensor, target: Tensor) -> None:
    source, target = local(source.detach()), local(target.detach())
    if source.data_ptr() != target.data_ptr():
        target.copy_(source)


def _zeros(parameters: Mapping[str, nn.Parameter], device: torch.device) -> dict[str, nn.Parameter]:
    """Return parameters of these shapes and marks on the device; tied ones stay tied."""
    zeros_by_id: dict[int, nn.Parameter] = {}
    for old in parameters.values():
        if id(old) not in zeros_by_id:
            zeros = torch.zeros(old.shape, dtype=old.dtype, device=device)
            zeros_by_id[id(old)] = nn.Parameter(zeros, requires_grad=old.requires_grad)
            keep_marks(old, zeros_by_id[id(old)])
    return {name: zeros_by_id[id(old)] for name, old in parameters.items()}
