"""Memory of a rank that has one stage of a pipeline: like ``costs.footprint``, for its part."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from models.costs.footprint import Footprint, footprint
from models.costs.model_costs import Costs
from models.costs.precision import PRECISIONS
from models.costs.training_memory import cached_copies
from models.family import Family
from models.parallel.pipeline_stages import Stage, chain

Value = TypeVar("Value")
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
    batch: int,
    **step: Any,
) -> Footprint:
    """Return the footprint of the largest stage; ``batch`` and ``step`` as of ``footprint``.

    A stage holds all of its gradients, and activations by the schedule: see ``_peak_in_flight``.
    Autocast's copies of weights exist once for a step, unless a compiler makes them.
    ``weights_apart``: gradients of weights are computed later than those of inputs, as in zero
    bubble. Raises ``ValueError`` for fewer blocks than chunks.
    """
    model_costs, stages = family.costs(config), _stages(family, config, ranks, chunks)
    rows = -(-batch // micro_batches)
    stream = rows * step["sequence"] * model_costs.dim * PRECISIONS[step["precision"]].stream

    def activations_of(part: Stage) -> int:
        """Return what the part's blocks hold of one micro-batch, without copies of weights."""
        costs = _stage_costs(model_costs, part, 0)
        # The output stays, as the end of the graph that its gradient comes back to.
        output = 0 if part.last else stream
        saved_copies = copies_of(costs)[1]
        return footprint(costs, batch=rows, **step).activations + output - saved_copies

    def copies_of(costs: Costs) -> tuple[int, int]:
        if step.get("compiled"):
            return 0, 0
        return cached_copies(costs, step["precision"], step.get("checkpointing", "none"))

    stage_footprints = []
    for rank, (stage, numel) in enumerate(stages):
        costs = _stage_costs(model_costs, stage, numel)
        single = footprint(costs, batch=rows, **step)
        parts = _chunks(stage)
        by_chunk = [activations_of(part) for part in parts]
        activations = _peak_in_flight(by_chunk, rank, ranks, micro_batches) + copies_of(costs)[0]
        if weights_apart:
            blocks = [part._replace(last=False) for part in parts]
            activations += WAITING * max(map(activations_of, blocks))
        # torch receives into buffers of their own, one per micro-batch and boundary.
        boundaries = sum((not part.first) + (not part.last) for part in parts)
        activations += boundaries * micro_batches * stream
        together = activations + single.gradients
        stage_footprints.append(replace(single, activations=activations, together=together))
    return max(stage_footprints, key=lambda stage: stage.total)


def _chunks(stage: Stage) -> list[Stage]:
    """Return each chunk of a stage as a stage of its own; the stage itself if it has none."""
    passages = [stage.passage(chunk) for chunk in range(len(stage.chunks))]
    return [
        Stage(tuple(stage.blocks[index] for index in passage.blocks), passage.first, passage.last)
        for passage in passages
    ] or [stage]


def _peak_in_flight(by_chunk: Sequence[int], rank: int, ranks: int, micro_batches: int) -> int:
    """Return the bytes of activations at most, of chunks with ``by_chunk`` bytes per micro-batch.

    One chunk holds the activations of as many micro-batches as there are stages from it on (1F1B).
    Several follow torch's interleaved schedule (Narayanan et al., arXiv 2104.04473, figure 4):
    micro-batches pass the chunks in rounds, and backward passes take the chunks in reverse order.
    """
    if len(by_chunk) == 1:
        return min(ranks - rank, micro_batches) * by_chunk[0]
    chunks = len(by_chunk)
    in_round = micro_batches // max(1, micro_batches // ranks)
    order = [by_chunk[step // in_round % chunks] for step in range(chunks * micro_batches)]
    freed = [by_chunk[-1 - step // in_round % chunks] for step in range(chunks * micro_batches)]
    passed = min((chunks - 1) * in_round + 2 * (ranks - 1 - rank) + 1, len(order))
    now = largest = sum(order[:passed])
    for added, less in zip(order[passed:], freed, strict=False):
        now += added - less
        largest = max(largest, now)
    return largest


@functools.cache
def _stages(family: Family, config: Any, ranks: int, chunks: int) -> list[tuple[Stage, int]]:
    """Return each stage with the number of elements of its parameters."""
    sizes = []
    for stage in chain(family, config).stages(ranks, chunks):
        model: Any = family.build(config)
        model.narrow(stage)
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
        matmul_per_token=round(part * costs.matmul_per_token),
        rotating=None if costs.rotating is None else len(attending),
        linear_parameters=round(part * costs.linears),
        block_passes=select(costs.block_passes),
        block_weights=tuple(weight / part for weight in select(weights)),
        kept_beside=None if kept_beside is None else lambda step: select(kept_beside(step)),
        attends=select(costs.attends),
    )
