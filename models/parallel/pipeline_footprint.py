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


def largest_stage(
    family: Family,
    config: Any,
    ranks: int,
    micro_batches: int,
    chunks: int = 1,
    *,
    batch: int,
    **step: Any,
) -> Footprint:
    """Return the footprint of the largest stage; ``batch`` and ``step`` as of ``footprint``.

    A stage holds all of its gradients, and the activations of as many micro-batches as there are
    stages from it on. With several ``chunks`` it holds the activations of more micro-batches,
    because all chunks run forward before the first backward pass. Autocast's copies of weights
    exist once for a step, unless a compiler makes them. Raises ``ValueError`` for
    fewer blocks than chunks.
    """
    model_costs, stages = family.costs(config), _stages(family, config, ranks, chunks)
    rows = -(-batch // micro_batches)
    stream = rows * step["sequence"] * model_costs.dim * PRECISIONS[step["precision"]].stream
    stage_footprints = []
    for rank, (stage, numel) in enumerate(stages):
        costs = _stage_costs(model_costs, stage, numel)
        single = footprint(costs, batch=rows, **step)
        in_flight = min(ranks - rank, micro_batches)
        if chunks > 1:
            passed = (chunks - 1) * ranks + 2 * (ranks - 1 - rank) + 1
            in_flight = -(-min(passed, chunks * micro_batches) // chunks)
        # The stage's output stays, as the end of the graph that its gradient comes back to.
        activations = in_flight * (single.activations + (0 if stage.last else stream))
        if not step.get("compiled"):
            checkpointing = step.get("checkpointing", "none")
            copies, saved_copies = cached_copies(costs, step["precision"], checkpointing)
            activations += copies - in_flight * saved_copies
        together = activations + single.gradients
        stage_footprints.append(replace(single, activations=activations, together=together))
    return max(stage_footprints, key=lambda stage: stage.total)


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
