"""Pipeline stages: contiguous parts of a chain of blocks, one per rank.

As in Huang et al., "GPipe" (arXiv 1811.06965): the first stage has the embedding, the last one the
final norm, the head and the loss. Between two of them flows the residual stream, of one micro-batch
at a time; a block's own loss stays in its stage. An embedding that is also the head is in both.

With several chunks per rank, as in Narayanan et al. (arXiv 2104.04473), section 2.2, a micro-batch
passes the ranks as often: each has the same number of shorter contiguous parts.

Stages give the result of the full model only if each row of a batch is computed by itself, and the
loss is a mean over rows. A module for which that is not true gives the reason in ``unstaged``.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from models.builder import ModelBuilder

_BLOCKS = "blocks."


class Stage(NamedTuple):
    """Blocks of a rank, and whether it includes what comes before or after all of them.

    ``chunks``: the parts that a micro-batch passes one by one, as ranges of indices into
    ``blocks``; empty for a single one.
    """

    blocks: range | tuple[int, ...]
    first: bool = True
    last: bool = True
    chunks: tuple[range, ...] = ()

    def passage(self, chunk: int | None) -> Passage:
        """Return what one call computes: a chunk, or all of them for None."""
        if chunk is None or not self.chunks:
            return Passage(range(len(self.blocks)), self.first, self.last)
        ends = self.first and not chunk, self.last and chunk == len(self.chunks) - 1
        return Passage(self.chunks[chunk], *ends)

    def whole_name(self, name: str) -> str:
        """Return the full model's name of a parameter of the stage."""
        if not name.startswith(_BLOCKS):
            return name
        number, _, own = name.removeprefix(_BLOCKS).partition(".")
        return f"{_BLOCKS}{self.blocks[int(number)]}.{own}"


class Passage(NamedTuple):
    """Blocks that one call of a stage computes, by their index in it, and whether with the ends."""

    blocks: range
    first: bool
    last: bool


class StageOutput(NamedTuple):
    """Output of a stage.

    ``x``: the stream (B, S, E) for the next stage; None for the last. ``loss`` ([], FP32): the
    stage's part of the training loss, if it has any.
    """

    x: Tensor | None
    loss: Tensor | None


def stages(n_blocks: int, ranks: int, chunks: int = 1) -> list[Stage]:
    """Return the stage of each rank, as even as possible, in so many ``chunks``.

    Additional blocks go to the first parts, because the last one has the head. Raises
    ``ValueError`` for fewer blocks than parts.
    """
    parts = ranks * chunks
    if n_blocks < parts:
        raise ValueError(
            f"stages: {n_blocks} blocks for {ranks} ranks with {chunks} chunks each, of which each "
            "needs one at least"
        )
    blocks_per_part, more = divmod(n_blocks, parts)
    ends = [blocks_per_part * part + min(part, more) for part in range(parts + 1)]
    ranges = [range(ends[part], ends[part + 1]) for part in range(parts)]
    if chunks == 1:
        return [Stage(own, own is ranges[0], own is ranges[-1]) for own in ranges]
    return [_in_chunks(ranges[rank::ranks], rank == 0, rank == ranks - 1) for rank in range(ranks)]


def _in_chunks(parts: list[range], first: bool, last: bool) -> Stage:
    """Return the stage of these parts of the full model."""
    ends = list(itertools.accumulate((len(part) for part in parts), initial=0))
    chunks = tuple(range(*pair) for pair in itertools.pairwise(ends))
    return Stage(tuple(itertools.chain(*parts)), first, last, chunks)


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
