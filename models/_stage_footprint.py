"""What a rank holds in memory that has one stage of a pipeline: as ``_footprint``, of its part."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from models._costs import Costs
from models._footprint import PRECISIONS, Footprint, cached_copies, footprint
from models._stages import Stage, chain, stages

if TYPE_CHECKING:
    from models._family import Family


def largest_stage(
    family: Family, config: Any, ranks: int, micro_batches: int, *, batch: int, **step: Any
) -> Footprint:
    """The footprint of the stage that needs most; ``batch`` and ``step`` as of ``footprint``.

    A stage keeps activations of as many micro-batches as there are stages from it on, beside all of
    its gradients; autocast's copies of weights it has once, for all of a step, unless a compiler
    makes them. Raises ``ValueError`` for fewer blocks than ranks.
    """
    whole, every = family.costs(config), _stages(family, config, ranks)
    rows = -(-batch // micro_batches)
    stream = rows * step["sequence"] * whole.dim * PRECISIONS[step["precision"]].stream
    found = []
    for rank, (stage, numbers) in enumerate(every):
        costs = _costs(whole, stage, every[-1][0].blocks.stop, numbers)
        one = footprint(costs, batch=rows, **step)
        held = min(ranks - rank, micro_batches)
        # What is passed on stays, as the end of the graph that its gradient comes back to.
        activations = held * (one.activations + (0 if stage.last else stream))
        if not step.get("compiled"):
            checkpointing = step.get("checkpointing", "none")
            copies, kept = cached_copies(costs, step["precision"], checkpointing)
            activations += copies - held * kept
        together = activations + one.gradients
        found.append(replace(one, activations=activations, together=together))
    return max(found, key=lambda one: one.total)


@functools.cache
def _stages(family: Family, config: Any, ranks: int) -> list[tuple[Stage, int]]:
    """Each stage, and how many numbers its parameters have."""
    found = []
    for stage in stages(chain(family, config).n_blocks, ranks):
        model: Any = family.build(config)
        model.narrow(stage)
        found.append((stage, sum(each.numel() for each in model.parameters())))
    return found


def _costs(whole: Costs, stage: Stage, n_blocks: int, numbers: int) -> Costs:
    """What of the costs of all blocks counts for a stage's training step."""
    own = slice(stage.blocks.start, stage.blocks.stop)
    weights = whole.block_weights or (1 / n_blocks,) * n_blocks
    part = sum(weights[own])
    linears, beside = whole.linear_parameters, whole.kept_beside
    attending = [block for block in whole.attends[own] if any(block)]
    return replace(
        whole,
        parameters=numbers,
        n_layers=len(stage.blocks),
        rows=whole.rows if stage.last else 0,
        matmul_per_token=round(part * whole.matmul_per_token),
        rotating=None if whole.rotating is None else len(attending),
        linear_parameters=None if linears is None else round(part * linears),
        block_passes=whole.block_passes[own],
        block_weights=tuple(weight / part for weight in weights[own]),
        kept_beside=None if beside is None else lambda how: beside(how)[own],
        attends=whole.attends[own],
    )
