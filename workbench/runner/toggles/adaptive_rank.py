"""Choose each head's rank from the entropy of its attention, instead of the full width.

Helps for long sequences, with the Triton kernel, which skips columns. Counted, if the lowest rank
is half of the columns: at most a quarter of attention's products is saved, which is 1.8 % of
AdaAttn base's forward pass at 1,024 tokens and 14 % at 16,384.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.runner.toggles._adapting import calls, head_dim, ranks, ranks_text
from workbench.runner.toggles._field_toggle import field_toggle

if TYPE_CHECKING:
    from workbench.runner.variants.observed import Observed


def _idle(value: Any, observed: Observed) -> str:
    """Return why no head computes with fewer columns; empty if one does."""
    full = head_dim(observed.model)
    if not value or min(ranks(observed.model)) < full:
        return ""
    after = calls(observed.model, observed.situation.workload)
    return (
        f"every head keeps its full rank of {full} after {after}: no rank was reduced, so the "
        "analysis only costs time"
    )


def _facts(value: Any, observed: Observed) -> str:
    return ranks_text(observed.model) if value else ""


TOGGLE = field_toggle("adaptive_rank", "Adaptive rank", __doc__, idle=_idle, facts=_facts)
