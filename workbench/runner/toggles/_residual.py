"""Helpers of the two toggles that change how a mixture of experts adds to its residual stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sessions.numbers import counted
from workbench.protocol import Blocked
from workbench.runner.toggles._toggle import Situation, Trait

if TYPE_CHECKING:
    from models import Model
    from workbench.runner.variants.observed import Observed


def needs_inference(value: Any, situation: Situation) -> Blocked | None:
    """Return why a training step cannot use these toggles; None for other workloads."""
    if not value or not situation.workload.trains:
        return None
    return Blocked(
        "overwrites tensors that the backward pass needs",
        "Choose inference.",
        {"workload": "forward"},
    )


def nothing_placed(value: Any, observed: Observed) -> str:
    """Return why no addition of a step reused memory; empty if one did."""
    if not value or observed.record.placed_additions:
        return ""
    if observed.situation.has(Trait.COMPILED):
        return "no addition reused memory: torch.compile plans memory itself"
    return "no addition reused memory: the residual stream has a wider dtype than the branches"


def placed_text(value: Any, observed: Observed) -> str:
    """Return how many additions of the model have reused memory so far."""
    return (
        f"{counted(_placed(observed.model), 'addition')} so far allocated no new memory"
        if value
        else ""
    )


def _placed(model: Model) -> int:
    return sum(getattr(module, "placed", 0) for module in model.modules())
