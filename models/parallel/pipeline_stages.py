"""Pipeline stages: contiguous parts of a chain of blocks, one per rank.

As in Huang et al., "GPipe" (arXiv 1811.06965): the first stage has the embedding, the last one the
final norm, the head and the loss. A stage sends the residual stream to the next, one micro-batch at
a time; a block's own loss stays in its stage. An embedding that is also the head is in both.

With several chunks per rank, as in Narayanan et al. (arXiv 2104.04473), section 2.2, a micro-batch
passes all ranks once per chunk: each rank has the same number of shorter contiguous parts.

Stages give the result of the full model only if each row of a batch is computed independently, and
the loss is a mean over rows. A module for which that is not true gives the reason in ``unstaged``.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from models.builder import ModelBuilder

_BLOCKS = "blocks."
# Work of the loss per logit in multiply-adds, calculated and not measured. PyTorch's operators read
# and write 28 bytes per logit in both passes (FP32 copies, log-softmax and gradients). An H200
# computes about 150 FLOPs in the time of a copied byte (640 TFLOP/s, 4.2 TB/s), and a multiply-add
# of a training step is 6 FLOPs: 700. A compiled or fused loss needs little. Half of 700 is between.
LOSS_PER_LOGIT = 350
# Work of a block outside its matrix products (norms, attention, activations), per token and channel
# of the residual stream, in the same unit. A round number: with it, the head and the loss of HYDRA
# base count as 4.5 blocks; without it, as 8.9. On an H200 they took as long as 3.6 blocks, compiled
# and captured (32 x 1,024 tokens, AMP BF16: 15.1 ms of a step, and 4.2 for a block).
STREAM_PER_CHANNEL = 8000


class Stage(NamedTuple):
    """Blocks of a rank; ``first`` and ``last``: it includes the parts before or after all blocks.

    ``chunks``: the parts that a micro-batch passes one by one, as ranges of indices into
    ``blocks``; empty for a single one.
    """

    blocks: range | tuple[int, ...]
    first: bool = True
    last: bool = True
    chunks: tuple[range, ...] = ()

    def passage(self, chunk: int | None) -> Passage:
        """Return the part that one call computes: a chunk, or all chunks for None."""
        if chunk is None or not self.chunks:
            return Passage(range(len(self.blocks)), self.first, self.last)
        ends = self.first and not chunk, self.last and chunk == len(self.chunks) - 1
        return Passage(self.chunks[chunk], *ends)

    def full_name(self, name: str) -> str:
        """Return the full model's name of a parameter of the stage."""
        if not name.startswith(_BLOCKS):
            return name
        number, _, local_name = name.removeprefix(_BLOCKS).partition(".")
        return f"{_BLOCKS}{self.blocks[int(number)]}.{local_name}"


class Passage(NamedTuple):
    """Blocks that one call of a stage computes, and whether it includes the first or last part."""

    blocks: range
    first: bool
    last: bool


class StageOutput(NamedTuple):
    """Output of a stage.

    ``x``: the residual stream (B, S, E) for the next stage; None for the last. ``loss`` ([], FP32):
    the stage's part of the training loss, if it has any.
    """

    x: Tensor | None
    loss: Tensor | None


def stages(loads: Sequence[float], ranks: int, chunks: int = 1, head: float = 0.0) -> list[Stage]:
    """Return the stage of each rank in so many ``chunks``, so that the busiest rank has least work.

    ``loads``: the work of each block; ``head``: that of the head and the loss, in the last part, in
    the same unit. Where it makes no difference, the first parts have more blocks. Raises
    ``ValueError`` for fewer blocks than parts.
    """
    parts = ranks * chunks
    if len(loads) < parts:
        raise ValueError(
            f"stages: a pipeline of {ranks} x {chunks} stages (ranks x stages per rank) needs at "
            f"least {parts} blocks, but the model has {len(loads)}; choose fewer "
            "ranks or a deeper model"
        )
    ends = (0, *itertools.accumulate(_balanced_sizes(tuple(loads), ranks, chunks, head)))
    ranges = [range(ends[part], ends[part + 1]) for part in range(parts)]
    if chunks == 1:
        return [Stage(blocks, blocks is ranges[0], blocks is ranges[-1]) for blocks in ranges]
    return [_in_chunks(ranges[rank::ranks], rank == 0, rank == ranks - 1) for rank in range(ranks)]


@functools.cache
def _balanced_sizes(
    loads: tuple[float, ...], ranks: int, chunks: int, head: float
) -> tuple[int, ...]:
    """Return the number of blocks in each part; part p belongs to rank p modulo ``ranks``.

    Starts with even parts. Moves a block from one part to another, and all parts in between by one
    block, as long as that makes the busiest rank faster or parts more even.
    """
    parts, sums = ranks * chunks, (0.0, *itertools.accumulate(loads))

    def cost(sizes: tuple[int, ...]) -> tuple[float, float]:
        ends = (0, *itertools.accumulate(sizes))
        work = [sums[end] - sums[start] for start, end in itertools.pairwise(ends)]
        work[-1] += head
        busiest = max(sum(work[rank::ranks]) for rank in range(ranks))
        return round(busiest, 9), round(sum(load * load for load in work), 9)

    even, remainder = divmod(len(loads), parts)
    sizes = tuple(even + (part < remainder) for part in range(parts))
    while True:
        moved = (
            tuple(size - (part == source) + (part == target) for part, size in enumerate(sizes))
            for source, target in itertools.permutations(range(parts), 2)
            if sizes[source] > 1
        )
        best = min(moved, key=cost, default=sizes)
        if cost(best) >= cost(sizes):
            return sizes
        sizes = best


def _in_chunks(parts: list[range], first: bool, last: bool) -> Stage:
    """Return the stage of these parts of the full model."""
    ends = list(itertools.accumulate((len(part) for part in parts), initial=0))
    chunks = tuple(range(*pair) for pair in itertools.pairwise(ends))
    return Stage(tuple(itertools.chain(*parts)), first, last, chunks)


@dataclass(frozen=True)
class Chain:
    """Chain of blocks in a model: ``unstaged`` is why it has no stages; empty if it has.

    ``loads``: the work of each block, as a fraction of all blocks'; ``head``: that of the head and
    the loss in the same unit.
    """

    loads: tuple[float, ...]
    head: float
    unstaged: str

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return len(self.loads)

    def stages(self, ranks: int, chunks: int = 1) -> list[Stage]:
        """Return the stage of each rank; raises ``ValueError`` for fewer blocks than parts."""
        return stages(self.loads, ranks, chunks, self.head)


@functools.cache
def chain(family: ModelBuilder, config: Any) -> Chain:
    """Describe the chain of a configuration's model; only its structure is built."""
    model = family.build(config)
    if not hasattr(model, "narrow"):
        why = f"{family.title} is not a plain chain of blocks from tokens to a loss"
        return Chain((), 0.0, why)
    costs = family.costs(config)
    head = costs.rows * (costs.dim + LOSS_PER_LOGIT)
    loads = costs.weights_by_block
    blocks = costs.matmul_per_token + costs.scan_per_token
    blocks += len(loads) * costs.dim * STREAM_PER_CHANNEL
    reasons = (getattr(module, "unstaged", "") for module in model.modules())
    return Chain(
        loads,
        head / blocks,
        next(filter(None, reasons), ""),
    )
