"""Choose each head's rank from the entropy of its attention, instead of the full width.

Counted: with the least rank at half the columns, a quarter of attention's products is saved at
most, 1.8 % of AdaAttn base's forward pass at 1,024 tokens and 14 % at 16,384. So it pays in long
sequences, with the kernel that leaves columns out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.runner.toggles._adapting import calls, head_dim, ranks, ranks_text
from workbench.runner.toggles._field_toggle import field_toggle

if TYPE_CHECKING:
    from workbench.runner.variants.observed import Observed


def _idle(value: Any, observed: Observed) -> str:
    """Say why no head computes with fewer columns; empty if one does."""
    full = head_dim(observed.model)
    if not value or min(ranks(observed.model)) < full:
        return ""
    after = calls(observed.model, observed.situation.workload)
    return (
        f"every head keeps full rank {full} of {full} after {after}: no rank was reduced, and "
        "a step pays for the analysis alone"
    )


def _facts(value: Any, observed: Observed) -> str:
    return ranks_text(observed.model) if value else ""


TOGGLE = field_toggle("adaptive_rank", "Adaptive rank", __doc__, idle=_idle, facts=_facts)
