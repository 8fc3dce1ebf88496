"""Memory of a rank that has a shard of each layer: like ``models.costs.footprint``, for its part.

Weights are sharded, with their gradients, moments, autocast's copies and the tensors that layers
save for their backward pass. If the sequence is split, so are the saved parts of the residual
stream. Everything else counts completely, even if it is sharded but not described by ``Division``:
the result is an upper bound.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from models.costs.footprint import Footprint, footprint
from models.costs.model_costs import Attends, Beside, BlockMemory, Costs, How
from models.family import Family
from models.parallel.tensor_parallel_plan import Divisible, divisible


def largest_share(
    family: Family,
    config: Any,
    ranks: int,
    *,
    along_sequence: bool = False,
    gathered: tuple[int, ...] = (),
    **step: Any,
) -> Footprint:
    """Return the footprint of each of ``ranks`` that shard the layers evenly.

    ``step`` as in ``footprint``; ``along_sequence``: the residual stream is split, too. What ranks
    that split sequences gather belongs to heads, and is sharded with them.
    """
    costs = shard_costs(family, config, ranks, along_sequence=along_sequence)
    parts = 1 if divisible(family, config).replicated else ranks
    return footprint(costs, gathered=tuple(-(-size // parts) for size in gathered), **step)


def shard_costs(family: Family, config: Any, ranks: int, *, along_sequence: bool = False) -> Costs:
    """Return the part of a model's costs that counts for a step of one of ``ranks``."""
    costs = family.costs(config)
    if ranks == 1:
        return costs
    costs = _shard_costs(costs, divisible(family, config), ranks)
    if along_sequence:
        stream = -(-costs.saved_stream_per_token // ranks)
        costs = replace(costs, saved_stream_per_token=stream, stream_ranks=ranks)
    return costs


def _own_heads(attention: Attends, ranks: int) -> Attends:
    """Return the part of an attention that a rank has: its heads."""
    heads, groups = attention.heads // ranks, attention.groups // ranks
    return replace(attention, heads=heads, groups=groups)


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
    # The peak in a block's backward pass is that of its wide layer, not of its attention.
    wide_layers = [
        sum(
            division.saved
            for name, division in plan.layers.items()
            if name.startswith(f"blocks.{index}.") and not name.endswith("attention")
        )
        for index in range(len(costs.passes))
    ]
    unfused = elsewhere(min(sum(division.unfused for division in block) for block in layers))
    wide = max(sum(division.fp32 for division in block) for block in layers)
    copies = max(sum(division.copies for division in block) for block in layers)
    by_torch, beside, kept_beside = costs.by_torch, costs.beside, costs.kept_beside
    attends, outputs = costs.attends, costs.operator_outputs
    if any(name.endswith("attention") for name in plan.layers):
        attends = tuple(
            tuple(tuple(_own_heads(attention, ranks) for attention in passed) for passed in block)
            for block in attends
        )

    def by_torch_sharded(step: How) -> BlockMemory:
        assert by_torch is not None
        return by_torch(step._replace(shards=ranks))

    def outputs_sharded(step: How) -> tuple[float, ...]:
        assert outputs is not None
        return outputs(step._replace(shards=ranks))

    def beside_sharded(step: How) -> Beside:
        assert beside is not None
        saved_bytes, backward_bytes = beside(step._replace(shards=ranks))
        # The steps of a norm are freed before the backward pass of the scan begins.
        tokens = step.batch * step.sequence
        backward_bytes -= tokens * 4 * (wide // ranks) if step.fused else 0
        saved_bytes -= tokens * 4 * (copies // ranks) if step.fused and step.element == 4 else 0
        return Beside(saved_bytes, max(0, backward_bytes))

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
        cast_by_operators=-(-costs.cast_by_operators // ranks),
        computed_together=-(-costs.computed_together // ranks),
        largest_in_block=-(-costs.largest_in_block // ranks),
        saved_per_token=costs.saved_per_token - saved,
        saved_fp32_per_token=costs.saved_fp32_per_token + wide - elsewhere(wide),
        unfused_per_token=costs.unfused_per_token - unfused,
        backward_per_token=costs.backward_per_token
        - elsewhere(min(costs.backward_per_token, min(wide_layers))),
        saved_past_attention=max(0, costs.saved_past_attention - saved),
        by_torch=None if by_torch is None else by_torch_sharded,
        beside=None if beside is None else beside_sharded,
        operator_outputs=None if outputs is None else outputs_sharded,
        attends=attends,
        kept_beside=kept_beside_sharded
        if kept_beside is not None and not costs.block_passes
        else kept_beside,
    )
