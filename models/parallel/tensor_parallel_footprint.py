"""Memory of a rank that has a shard of each layer: like ``models.costs.footprint``, for its part.

Weights are sharded, with their gradients, moments and autocast's copies, and what layers save for
their backward pass. If the sequence is split, so is what blocks save of the residual stream.
Everything else counts completely, even if it is sharded but not described by ``Division``: that is
an upper bound.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from models.costs.footprint import Footprint, footprint
from models.costs.model_costs import BlockMemory, Costs, How
from models.family import Family
from models.parallel.tensor_parallel_plan import Divisible, divisible


def largest_share(
    family: Family, config: Any, ranks: int, *, along_sequence: bool = False, **step: Any
) -> Footprint:
    """Return the footprint of each of ``ranks`` that shard the layers evenly.

    ``step`` as of ``footprint``; ``along_sequence``: the residual stream is split, too.
    """
    costs = _shard_costs(family.costs(config), divisible(family, config), ranks)
    if along_sequence:
        stream = -(-costs.saved_stream_per_token // ranks)
        costs = replace(costs, saved_stream_per_token=stream, stream_ranks=ranks)
    return footprint(costs, **step)


def _shard_costs(costs: Costs, plan: Divisible, ranks: int) -> Costs:
    """Return the part of a model's costs that counts for a rank's step."""

    def elsewhere(numel: int) -> int:
        """Return how many of so many sharded elements this rank does not have."""
        return numel - -(-numel // ranks)

    layers = [plan.of_block(index) for index in range(len(costs.passes))]
    saved_by_block = [sum(division.saved for division in block) for block in layers]
    # A block may have more than the one that costs describe, or be several.
    unit = min(saved_by_block)
    saved = elsewhere(unit)
    unfused = elsewhere(min(sum(division.unfused for division in block) for block in layers))
    wide = max(sum(division.fp32 for division in block) for block in layers) if ranks > 1 else 0
    by_torch, kept_beside = costs.by_torch, costs.kept_beside

    def by_torch_sharded(step: How) -> BlockMemory:
        assert by_torch is not None
        memory = by_torch(step)
        return replace(memory, kept_per_token=memory.kept_per_token - saved * step.element)

    def kept_beside_sharded(step: How) -> tuple[tuple[float, ...], ...]:
        assert kept_beside is not None
        return tuple(
            tuple(max(0.0, part - elsewhere(block - unit) * step.element) for part in passes)
            for passes, block in zip(kept_beside(step), saved_by_block, strict=True)
        )

    return replace(
        costs,
        parameters=costs.parameters - elsewhere(plan.sharded_numel),
        linear_parameters=costs.linears - elsewhere(plan.sharded_numel),
        linears_after=costs.linears_after
        - elsewhere(plan.sharded_numel - plan.sharded_numel_in_blocks),
        saved_per_token=costs.saved_per_token - saved,
        saved_fp32_per_token=costs.saved_fp32_per_token + wide - elsewhere(wide),
        unfused_per_token=costs.unfused_per_token - unfused,
        backward_per_token=costs.backward_per_token
        - elsewhere(min(costs.backward_per_token, unit)),
        saved_past_attention=max(0, costs.saved_past_attention - saved),
        by_torch=None if by_torch is None else by_torch_sharded,
        kept_beside=kept_beside_sharded
        if kept_beside is not None and not costs.block_passes
        else kept_beside,
    )
