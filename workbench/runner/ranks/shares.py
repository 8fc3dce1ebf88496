"""One rank's weights of a divided model, in tensors of their own, beside rank 0's whole ones.

The whole weights are what all other arms go on from, so they stay with rank 0, with their moments:
shares are cut from them where a divided arm is entered, and put back where it is left. The other
ranks never have the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from models import Model
from models.initialisation import keep_marks
from models.language_model import LanguageModel
from models.parallel.tensor_parallel_plan import WHOLE, Cut, divide
from workbench.runner.ranks.layers import Held
from workbench.runner.ranks.region import AcrossRanks, AlongSequence
from workbench.runner.toggles import Situation
from workbench.runner.variants.training import Weights

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build


class Shares(Held):
    """What this rank has of one structure; ``whole`` is rank 0's, None on every other.

    They hold no numbers until they are taken. Raises ``ValueError`` where a layer does not divide.
    """

    def __init__(
        self, situation: Situation, dtype: torch.dtype, ranks: int, whole: Weights | None
    ) -> None:
        structure: Model = situation.family.build(situation.config, dtype=dtype)
        self.ranks, self.whole, self._device = ranks, whole, situation.device
        self.cuts = divide(structure, ranks, WHOLE)
        self.own = Weights(zeros(structure.weights(), situation.device))

    def model(self, build: Build) -> Model:
        """A model around them, whose stream may be divided too."""
        family, config, named = build.situation.family, build.situation.config, self.own.parameters
        region = AlongSequence(self.ranks) if build.along_sequence else AcrossRanks()
        model = family.share_divided(config, named, self.ranks, region)
        if build.along_sequence:
            assert isinstance(model, LanguageModel)
            model.stream = region
        return model

    def between(self) -> list[nn.Parameter]:
        """Of the blocks, what every rank has: norms and gates between the divided layers."""
        named = self.own.parameters.items()
        return [one for name, one in named if name.startswith("blocks.") and name not in self.cuts]

    def common(self, *, gradients: bool = False) -> list[Tensor]:
        """What every rank has: whole parameters, and parts of such as are cut; or their gradients,
        where there are.
        """
        found: list[Tensor] = []
        for name, parameter in self.own.parameters.items():
            tensor = parameter.grad if gradients else parameter.detach()
            cut = self.cuts.get(name)
            if tensor is not None:
                found += [tensor] if cut is None else cut.common(tensor, self.ranks)
        return found

    @torch.no_grad()
    def take(self, own: Optimizer | None, whole: Optimizer | None) -> None:
        """Cut every rank's share, and that of the moments."""
        for mine, theirs, cut in self._pairs(own, whole):
            sent = torch.empty_like(mine, device=self._device)
            if cut is None:
                if theirs is not None:
                    sent.copy_(theirs)
                dist.broadcast(sent, src=0)
            elif theirs is None:
                dist.scatter(sent, None, src=0)
            else:
                parts = [cut.take(theirs, rank, self.ranks) for rank in range(self.ranks)]
                dist.scatter(sent, [part.to(self._device) for part in parts], src=0)
            mine.copy_(sent)

    @torch.no_grad()
    def give_back(self, own: Optimizer | None, whole: Optimizer | None) -> None:
        """Put every rank's share, and that of the moments, back into the whole."""
        for mine, theirs, cut in self._pairs(own, whole):
            if cut is None:
                if theirs is not None:
                    theirs.copy_(mine)
                continue
            sent = mine.to(self._device)
            if theirs is None:
                dist.gather(sent, None, dst=0)
                continue
            parts = [torch.empty_like(sent) for _ in range(self.ranks)]
            dist.gather(sent, parts, dst=0)
            for rank, part in enumerate(parts):
                cut.put(part, theirs, rank, self.ranks)

    def _pairs(
        self, own: Optimizer | None, whole: Optimizer | None
    ) -> Iterator[tuple[Tensor, Tensor | None, Cut | None]]:
        """Each tensor, rank 0's whole one of it, and where that is cut."""
        for name, parameter in self.own.parameters.items():
            cut = self.cuts.get(name)
            original = None if self.whole is None else self.whole.parameters[name]
            yield parameter, original, cut
            if own is None:
                continue
            state = own.state[parameter]
            for kind in sorted(state):
                theirs = None
                if whole is not None and original is not None:
                    theirs = whole.state[original][kind]
                yield state[kind], theirs, cut if state[kind].ndim else None


def zeros(parameters: dict[str, nn.Parameter], device: torch.device) -> dict[str, nn.Parameter]:
    """Parameters of these shapes and marks on the device."""
    return {
        name: keep_marks(old, nn.Parameter(torch.zeros(old.shape, dtype=old.dtype, device=device)))
        for name, old in parameters.items()
    }
