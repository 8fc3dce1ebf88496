"""One rank's stage of a pipeline: its weights, in tensors of their own, beside rank 0's whole ones.

Each tensor goes from rank 0 to the stage that has it, and back, by a broadcast over all ranks,
which passes the others by: once where an arm is entered and once where it is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from models import Model
from models.parallel.pipeline_stages import chain, stages
from workbench.runner.ranks.divided import digest
from workbench.runner.ranks.group import rank
from workbench.runner.ranks.layers import Held
from workbench.runner.ranks.shares import zeros
from workbench.runner.toggles import Situation
from workbench.runner.variants.training import Weights

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build


class _Place(NamedTuple):
    """A tensor of the whole model: what this rank has of it, and which ranks have it."""

    like: Tensor  # shape and dtype
    mine: Tensor | None
    theirs: Tensor | None  # rank 0's whole one
    holders: list[int]


class Stages(Held):
    """What this rank has; it holds no numbers until they are taken.

    Raises ``ValueError`` for fewer blocks than ranks.
    """

    def __init__(
        self, situation: Situation, dtype: torch.dtype, ranks: int, whole: Weights | None
    ) -> None:
        self.ranks, self.whole, self._device = ranks, whole, situation.device
        family, config = situation.family, situation.config
        self.stages = stages(chain(family, config).n_blocks, ranks)
        self.stage = self.stages[rank()]
        self._whole_names: dict[str, Tensor] = dict(family.build(config, dtype=dtype).weights())
        self._holders: dict[str, list[int]] = {name: [] for name in self._whole_names}
        for number, stage in enumerate(self.stages):
            structure: Any = family.build(config, dtype=dtype)
            structure.narrow(stage)
            named: dict[str, nn.Parameter] = structure.weights()
            for name in named:
                self._holders[stage.whole_name(name)].append(number)
            if stage is self.stage:
                self.own = Weights(zeros(named, situation.device))
        self._mine = {self.stage.whole_name(n): one for n, one in self.own.parameters.items()}

    def model(self, build: Build) -> Model:
        """A model around them."""
        family, config = build.situation.family, build.situation.config
        made: Model = family.share_stage(config, self.own.parameters, self.stage)
        return made

    def on_both_ends(self) -> list[nn.Parameter]:
        """Parameters that the first and the last stage have both, and no other; if this is one."""
        return [one for name, one in self._mine.items() if len(self._holders[name]) > 1]

    def digests(self) -> tuple[Tensor, Tensor]:
        """Of each parameter of the whole, the least and the highest digest of what is here: of the
        stage, and on rank 0 of the whole. What is not here is no bound.
        """
        limits = torch.iinfo(torch.int64)
        least = torch.full((len(self._whole_names),), limits.max, device=self._device)
        most = torch.full_like(least, limits.min)
        for index, name in enumerate(self._whole_names):
            whole = None if self.whole is None else self.whole.parameters[name]
            found = [digest(each) for each in (self._mine.get(name), whole) if each is not None]
            if found:
                least[index], most[index] = torch.stack(found).aminmax()
        return least, most

    @torch.no_grad()
    def take(self, own: Optimizer | None, whole: Optimizer | None) -> None:
        """Give every rank its stage's, and their moments."""
        for place in self._places(own, whole):
            self._send(place.like, place.theirs, place.mine, src=0)

    @torch.no_grad()
    def give_back(self, own: Optimizer | None, whole: Optimizer | None) -> None:
        """Put every stage's, and their moments, back into the whole."""
        for place in self._places(own, whole):
            self._send(place.like, place.mine, place.theirs, src=place.holders[0])

    def _send(self, like: Tensor, one: Tensor | None, other: Tensor | None, src: int) -> None:
        """``one`` of rank ``src`` becomes every rank's ``other``, where there is that."""
        sent = torch.empty(like.shape, dtype=like.dtype, device=self._device)
        if rank() == src:
            assert one is not None
            sent.copy_(one)
        dist.broadcast(sent, src=src)
        if other is not None:
            other.copy_(sent)

    def _places(self, own: Optimizer | None, whole: Optimizer | None) -> Iterator[_Place]:
        """Each tensor, in the same order on every rank."""
        states: dict[Any, dict[str, Tensor]] = {} if own is None else dict(own.state)
        like = next(iter(states.values()), {})  # every parameter has the same kinds of state
        for name, shape in self._whole_names.items():
            mine, holders = self._mine.get(name), self._holders[name]
            theirs = None if self.whole is None else self.whole.parameters[name]
            yield _Place(shape, mine, theirs, holders)
            for kind in sorted(like):
                yield _Place(
                    shape if like[kind].ndim else like[kind],
                    None if mine is None else states[mine][kind],
                    None if whole is None or theirs is None else whole.state[theirs][kind],
                    holders,
                )
