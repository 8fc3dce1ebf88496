"""Memory of a rank that has one stage of a pipeline: like ``costs.footprint``, for its part."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from models.costs.footprint import Footprint, footprint
from models.costs.model_costs import Costs
from models.costs.precision import PRECISIONS, Precision
from models.costs.training_memory import cached_copies
from models.family import Family
from models.parallel.pipeline_stages import Stage, chain
from models.parallel.tensor_parallel_footprint import shard_costs
from models.parallel.tensor_parallel_plan import WHOLE, divide

Value = TypeVar("Value")
Order = tuple[list[int], list[int], int]  # order of passes; see ``_order``
# Micro-batches' activations of a chunk's blocks that weight gradients computed apart add to those
# of an interleaved pipeline. Measured on two H200s (HYDRA base, 4 x 1,024 tokens), not derived:
# the gradients that wait, and what autograd cannot free before them.
WAITING = 2


def largest_stage(
    family: Family,
    config: Any,
    ranks: int,
    micro_batches: int,
    chunks: int = 1,
    *,
    weights_apart: bool = False,
    all_forward: bool = False,
    tensor_ranks: int = 1,
    along_sequence: bool = False,
    batch: int,
    gathered: tuple[int, ...] = (),
    **step: Any,
) -> Footprint:
    """Return the footprint of the largest stage; ``batch`` and ``step`` as in ``footprint``.

    A stage holds all of its gradients, and activations by the schedule: see ``_peaks_in_flight``.
    Autocast's copies of weights exist once for a step, unless a compiler makes them.
    ``weights_apart``: gradients of weights are computed later than those of inputs, as in zero
    bubble. ``all_forward``: no backward pass begins before the last forward pass, as in GPipe.
    ``tensor_ranks`` shard the layers of each stage; ``along_sequence`` as in ``largest_share``.
    Raises ``ValueError`` for fewer blocks than chunks.
    """
    stages = _stages(family, config, ranks, chunks, tensor_ranks)
    rows = -(-batch // micro_batches)
    model_costs = replace(
        shard_costs(family, config, tensor_ranks, along_sequence=along_sequence),
        gathered=tuple(-(-size * rows // (batch * tensor_ranks)) for size in gathered),
    )
    micro_batch = _MicroBatch(model_costs, rows, step)
    stage_footprints = []
    for rank, (stage, numel) in enumerate(stages):
        parts = _chunks(stage)
        order = _order(len(parts), rank, ranks, micro_batches, all_forward=all_forward)
        # torch receives into buffers of their own, one per micro-batch and boundary.
        boundaries = sum((not part.first) + (not part.last) for part in parts)
        lasting = boundaries * micro_batches * micro_batch.stream
        if weights_apart:
            lasting += WAITING * max(map(micro_batch.waiting, parts))
        stage_footprints.append(micro_batch.stage_footprint(stage, numel, order, lasting))
    return max(stage_footprints, key=lambda stage: stage.total)


@dataclass(frozen=True)
class _MicroBatch:
    """Memory of stages and of their parts for a micro-batch of so many ``rows``."""

    costs: Costs  # costs of the model
    rows: int
    step: dict[str, Any]

    @property
    def size(self) -> Precision:
        """Bytes of a number."""
        return PRECISIONS[self.step["precision"]]

    @property
    def stream(self) -> int:
        """Bytes of the residual stream."""
        return int(self.rows * self.step["sequence"] * self.costs.dim * self.size.stream)

    @property
    def compiled(self) -> bool:
        """True if a compiler makes the copies of weights, for each micro-batch."""
        return bool(self.step.get("compiled", False))

    def copies(self, costs: Costs) -> int:
        """Return the bytes of copies of weights that all micro-batches share."""
        return 0 if self.compiled else cached_copies(costs, self.step["precision"])

    def first(self, part: Stage) -> Footprint:
        """Return the footprint of the first micro-batch in a part."""
        return footprint(_stage_costs(self.costs, part, 0), batch=self.rows, **self.step)

    def later(self, part: Stage) -> Footprint:
        """Return that of a later one, which adds to gradients and finds copies of weights."""
        costs = _stage_costs(self.costs, part, 0)
        single = footprint(costs, batch=self.rows, accumulates=not self.compiled, **self.step)
        together = single.activations if self.compiled else single.together
        if part.first:
            # The embedding's gradient comes last, and is computed before it is added.
            embedding = self.copies(costs) + self.costs.head * self.size.weight + self.stream
            together = max(together, embedding)
        return replace(single, together=together)

    def waiting(self, part: Stage) -> int:
        """Return the bytes of a part whose gradients of weights are not computed yet."""
        return self.later(part._replace(last=False)).activations + self.stream

    def stage_footprint(self, stage: Stage, numel: int, order: Order, lasting: int) -> Footprint:
        """Return the footprint of a stage with ``numel`` parameters.

        ``lasting``: bytes that exist besides during the complete step.
        """
        costs, parts = _stage_costs(self.costs, stage, numel), _chunks(stage)
        single = footprint(costs, batch=self.rows, **self.step)
        later = [self.later(part) for part in parts]
        # The output stays, as the end of the graph that its gradient comes back to.
        saved = [
            chunk.saved + (0 if part.last else self.stream)
            for part, chunk in zip(parts, later, strict=True)
        ]
        before, after = _peaks_in_flight(saved, *order)
        activations = max(before, after) + max(c.activations - c.saved for c in later)
        before += max(c.together - c.saved for c in map(self.first, parts))
        after += max(c.together - c.saved for c in later) + single.gradients
        lasting += self.copies(costs)
        together = max(before + lasting, after + lasting, single.together)
        return replace(single, activations=activations + lasting, together=together)


def _chunks(stage: Stage) -> list[Stage]:
    """Return each chunk of a stage as a separate stage; the stage itself without chunks."""
    passages = [stage.passage(chunk) for chunk in range(len(stage.chunks))]
    return [
        Stage(tuple(stage.blocks[index] for index in passage.blocks), passage.first, passage.last)
        for passage in passages
    ] or [stage]


def _order(
    chunks: int, rank: int, ranks: int, micro_batches: int, *, all_forward: bool = False
) -> Order:
    """Return the chunks of the forward passes and of the backward passes, in their order.

    The last number is how many forward passes run before the first backward pass. For one chunk
    these are as many as there are stages from it on (1F1B). Several follow torch's interleaved
    schedule (Narayanan et al., arXiv 2104.04473, figure 4): micro-batches pass the chunks in
    rounds, and backward passes take the chunks in reverse order.
    """
    in_round = micro_batches // max(1, micro_batches // ranks)
    forward = [step // in_round % chunks for step in range(chunks * micro_batches)]
    passed = ranks - rank
    if chunks > 1:
        passed = (chunks - 1) * in_round + 2 * (ranks - 1 - rank) + 1
    if all_forward:
        passed = len(forward)
    return forward, [chunks - 1 - chunk for chunk in forward], min(passed, len(forward))


def _peaks_in_flight(
    by_chunk: Sequence[int], forward: Sequence[int], backward: Sequence[int], passed: int
) -> tuple[int, int]:
    """Return the most saved bytes before the first backward pass has ended, and after that.

    ``by_chunk``: bytes that each chunk saves for a micro-batch; the rest as in ``_order``.
    """
    added = [by_chunk[chunk] for chunk in forward] + [0] * passed
    now = before = sum(added[:passed])
    after = 0
    for more, chunk in zip(added[passed:], backward, strict=True):
        now += more - by_chunk[chunk]
        after = max(after, now)
    return before, after


@functools.cache
def _stages(
    family: Family, config: Any, ranks: int, chunks: int, tensor_ranks: int
) -> list[tuple[Stage, int]]:
    """Return each stage with the number of elements of its parameters on a rank."""
    sizes = []
    for stage in chain(family, config).stages(ranks, chunks):
        model: Any = family.build(config)
        model.narrow(stage)
        if tensor_ranks > 1:
            divide(model, tensor_ranks, WHOLE)
        sizes.append((stage, sum(parameter.numel() for parameter in model.parameters())))
    return sizes


def _stage_costs(costs: Costs, stage: Stage, numel: int) -> Costs:
    """Return the part of all blocks' costs that counts for a stage's training step."""

    def select(values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(values[index] for index in stage.blocks) if values else ()

    weights, kept_beside = costs.weights_by_block, costs.kept_beside
    part = sum(select(weights))
    attending = [block for block in select(costs.attends) if any(block)]
    return replace(
        costs,
        parameters=numel,
        n_layers=len(stage.blocks),
        rows=costs.rows if stage.last else 0,
        tied=costs.tied and stage.first and stage.last,
        matmul_per_token=round(part * costs.matmul_per_token),
        rotating=None if costs.rotating is None else len(attending),
        linear_parameters=round(part * costs.linears),
        block_passes=select(costs.block_passes),
        block_weights=tuple(weight / part for weight in select(weights)),
        kept_beside=None if kept_beside is None else lambda step: select(kept_beside(step)),
        attends=select(costs.attends),
        gathered=select(costs.gathered),
    )
