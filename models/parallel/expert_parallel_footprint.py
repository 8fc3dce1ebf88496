"""Memory of a rank that has a part of each mixture's experts: like ``costs.footprint``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from models.costs.footprint import Footprint, footprint
from models.parallel.expert_parallel import experts_of

if TYPE_CHECKING:
    from models.family import Family


def experts_footprint(family: Family, config: Any, ranks: int, **step: Any) -> Footprint:
    """Return the footprint of a rank that has a part of the experts; ``step`` has its own batch.

    Activations count as if a rank's experts computed as many choices as its tokens make. They
    include the rows that ranks send each other, as a mean over the blocks; PyTorch's operators save
    as many anyway.
    """
    costs, experts = family.costs(config), experts_of(family, config)
    elsewhere = experts.numel * (ranks - 1) // ranks
    linears = costs.linear_parameters
    rank_linears = None if linears is None else linears - elsewhere
    rank_costs = replace(
        costs,
        parameters=costs.parameters - elsewhere,
        linear_parameters=rank_linears,
        cast_by_operators=costs.cast_by_operators // ranks,
        computed_together=costs.computed_together // ranks,
        largest_in_block=costs.largest_in_block // ranks,
        saved_per_token=costs.saved_per_token + experts.added // costs.n_layers,
    )
    return footprint(rank_costs, **step)
