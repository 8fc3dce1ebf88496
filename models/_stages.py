"""Stages of a pipeline: contiguous parts of a chain of blocks, which several ranks go through.

As in Huang et al., "GPipe" (arXiv 1811.06965): the first stage has the embedding, the last one the
final norm, the head and the loss. What lies between two of them is the residual stream, of a
micro-batch at a time; a block's own loss stays where the block is. An embedding that is the head
too is on both ends.

A stage gives what the whole would give only if each row of a batch is computed by itself, and the
loss is a mean over rows: a module of which that is not so says why in ``unstaged``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

if TYPE_CHECKING:
    from models._family import Family

_BLOCKS = "blocks."


class Stage(NamedTuple):
    """Which of the blocks, and whether what comes before or after all of them."""

    blocks: range
    first: bool = True
    last: bool = True

    def whole_name(self, name: str) -> str:
        """What a parameter of the stage is called in the whole model."""
        if not name.startswith(_BLOCKS):
            return name
        number, _, own = name.removeprefix(_BLOCKS).partition(".")
        return f"{_BLOCKS}{self.blocks[int(number)]}.{own}"


class StageOutput(NamedTuple):
    """``x``: the stream (B, S, E) for the stage after; None of the last. ``loss`` ([], FP32): the
    stage's part of the training loss, if it has any.
    """

    x: Tensor | None
    loss: Tensor | None


def stages(n_blocks: int, ranks: int) -> list[Stage]:
    """The stage of each rank, as even as can be; what is left over goes to the first ones, as the
    last one has the head. Raises ``ValueError`` for fewer blocks than ranks.
    """
    if n_blocks < ranks:
        raise ValueError(f"stages: {n_blocks} blocks for {ranks} ranks; each needs one at least")
    each, more = divmod(n_blocks, ranks)
    ends = [each * rank + min(rank, more) for rank in range(ranks + 1)]
    return [
        Stage(range(ends[rank], ends[rank + 1]), rank == 0, rank == ranks - 1)
        for rank in range(ranks)
    ]


@dataclass(frozen=True)
class Chain:
    """A model as stages see it: ``unstaged`` says why it cannot be divided; empty where it can."""

    n_blocks: int
    unstaged: str


@functools.cache
def chain(family: Family, config: Any) -> Chain:
    """Of a configuration's model, of which nothing but the structure is built."""
    model: nn.Module = family.build(config)
    if not hasattr(model, "narrow"):
        return Chain(0, f"{family.title} is no plain chain of blocks from tokens to a loss")
    reasons = (getattr(module, "unstaged", "") for module in model.modules())
    return Chain(len(model.get_submodule("blocks")), next(filter(None, reasons), ""))  # type: ignore[arg-type]
