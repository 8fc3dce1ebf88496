"""Pipeline stages: contiguous parts of a chain of blocks, one per rank.

As in Huang et al., "GPipe" (arXiv 1811.06965): the first stage has the embedding, the last one the
final norm, the head and the loss. Between two of them flows the residual stream, of one micro-batch
at a time; a block's own loss stays in its stage. An embedding that is also the head is in both.

Stages give the result of the full model only if each row of a batch is computed by itself, and the
loss is a mean over rows. A module for which that is not true gives the reason in ``unstaged``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from models.builder import ModelBuilder

_BLOCKS = "blocks."


class Stage(NamedTuple):
    """Range of blocks, and whether it includes what comes before or after all of them."""

    blocks: range
    first: bool = True
    last: bool = True

    def whole_name(self, name: str) -> str:
        """Return the full model's name of a parameter of the stage."""
        if not name.startswith(_BLOCKS):
            return name
        number, _, own = name.removeprefix(_BLOCKS).partition(".")
        return f"{_BLOCKS}{self.blocks[int(number)]}.{own}"


class StageOutput(NamedTuple):
    """Output of a stage.

    ``x``: the stream (B, S, E) for the next stage; None for the last. ``loss`` ([], FP32): the
    stage's part of the training loss, if it has any.
    """

    x: Tensor | None
    loss: Tensor | None


def stages(n_blocks: int, ranks: int) -> list[Stage]:
    """Return the stage of each rank, as even as possible.

    Additional blocks go to the first stages, because the last one has the head. Raises
    ``ValueError`` for fewer blocks than ranks.
    """
    if n_blocks < ranks:
        raise ValueError(f"stages: {n_blocks} blocks for {ranks} ranks; each needs one at least")
    blocks_per_rank, more = divmod(n_blocks, ranks)
    ends = [blocks_per_rank * rank + min(rank, more) for rank in range(ranks + 1)]
    return [
        Stage(range(ends[rank], ends[rank + 1]), rank == 0, rank == ranks - 1)
        for rank in range(ranks)
    ]


@dataclass(frozen=True)
class Chain:
    """Chain of blocks in a model: ``unstaged`` is why it has no stages; empty if it has."""

    n_blocks: int
    unstaged: str


@functools.cache
def chain(family: ModelBuilder, config: Any) -> Chain:
    """Describe the chain of a configuration's model; only its structure is built."""
    model = family.build(config)
    if not hasattr(model, "narrow"):
        return Chain(0, f"{family.title} is not a plain chain of blocks from tokens to a loss")
    reasons = (getattr(module, "unstaged", "") for module in model.modules())
    return Chain(len(model.get_submodule("blocks")), next(filter(None, reasons), ""))  # type: ignore[arg-type]
