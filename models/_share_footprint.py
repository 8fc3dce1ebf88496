"""What a rank holds in memory that has a share of each layer: as ``_footprint``, of its part.

Divided are weights, with their gradients, moments and autocast's copies, and what layers keep for
their backward pass; with the sequence also what blocks keep of the stream. All else counts as
whole, as does what is divided and not told by ``Division``: that is an upper bound.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from models._costs import Costs, Held, How
from models._division import Divisible, divisible
from models._footprint import Footprint, footprint

if TYPE_CHECKING:
    from models._family import Family


def largest_share(
    family: Family, config: Any, ranks: int, *, along_sequence: bool = False, **step: Any
) -> Footprint:
    """The footprint of each of ``ranks`` that divide the layers evenly; ``step`` as of
    ``footprint``, ``along_sequence``: the stream between the layers too.
    """
    costs = _costs(family.costs(config), divisible(family, config), ranks)
    if along_sequence:
        stream = -(-costs.saved_stream_per_token // ranks)
        costs = replace(costs, saved_stream_per_token=stream, stream_ranks=ranks)
    return footprint(costs, **step)


def _costs(whole: Costs, found: Divisible, ranks: int) -> Costs:
    """What of a model's costs counts for a rank's step."""

    def less(numbers: int) -> int:
        return numbers - -(-numbers // ranks)

    layers = [found.of_block(index) for index in range(len(whole.block_passes) or whole.n_layers)]
    kept = [sum(each.saved for each in block) for block in layers]
    unit = min(kept)  # a block may have more than the one that costs describe, or be several
    saved, unfused = less(unit), less(min(sum(each.unfused for each in block) for block in layers))
    wide = max(sum(each.fp32 for each in block) for block in layers) if ranks > 1 else 0
    linears, by_torch, beside = whole.linear_parameters, whole.by_torch, whole.kept_beside
    linears = whole.matmul_per_token if linears is None else linears

    def held(how: How) -> Held:
        assert by_torch is not None
        made = by_torch(how)
        return replace(made, kept_per_token=made.kept_per_token - saved * how.element)

    def more(how: How) -> tuple[tuple[float, ...], ...]:
        assert beside is not None
        return tuple(
            tuple(max(0.0, one - less(block - unit) * how.element) for one in passes)
            for passes, block in zip(beside(how), kept, strict=True)
        )

    return replace(
        whole,
        parameters=whole.parameters - less(found.cut),
        linear_parameters=linears - less(found.cut),
        linears_after=whole.linears_after - less(found.cut - found.cut_in_blocks),
        saved_per_token=whole.saved_per_token - saved,
        saved_fp32_per_token=whole.saved_fp32_per_token + wide - less(wide),
        unfused_per_token=whole.unfused_per_token - unfused,
        saved_past_attention=max(0, whole.saved_past_attention - saved),
        by_torch=None if by_torch is None else held,
        kept_beside=more if beside is not None and not whole.block_passes else beside,
    )
