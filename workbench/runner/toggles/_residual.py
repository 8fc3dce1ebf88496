"""Helpers of the two toggles of how a mixture of experts adds to its residual stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.protocol import Blocked
from workbench.runner.toggles._toggle import Situation, Trait

if TYPE_CHECKING:
    from models import Model
    from workbench.runner.variants.observed import Observed


def needs_inference(value: Any, situation: Situation) -> Blocked | None:
    """A backward pass needs what these overwrite."""
    if not value or not situation.workload.trains:
        return None
    return Blocked(
        "overwrites what a backward pass needs", "Choose inference.", {"workload": "forward"}
    )


def nothing_placed(value: Any, observed: Observed) -> str:
    """Say why no addition of the model avoided new memory; empty if one did."""
    if not value or _placed(observed.model):
        return ""
    if observed.situation.has(Trait.COMPILED):
        return "no addition was placed: torch.compile plans its memory itself"
    return "no addition was placed: the branches' results are narrower than the stream"


def placed_text(value: Any, observed: Observed) -> str:
    """Say how many additions of the model avoided new memory so far."""
    return f"{_placed(observed.model)} additions so far took no new memory" if value else ""


def _placed(model: Model) -> int:
    return sum(getattr(module, "placed", 0) for module in model.modules())
