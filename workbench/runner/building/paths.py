"""The paths of an arm's steps: what computed its experts, and the ranks of its heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kernels
from workbench.runner.toggles._adapting import ranks_text

if TYPE_CHECKING:
    from workbench.runner.variants.variant import Arm


def path_text(arm: Arm) -> str:
    """Say which path ran where PyTorch has several, and which ranks are in use; empty for none.

    The former is of the step that was watched. Reading the ranks waits for the device.
    """
    clauses = [
        f"{name} by {' and '.join(calls)}"
        for name, calls in arm.usage.items()
        if kernels.OPS[name].standard is not None
    ]
    if getattr(arm.situation.config, "adaptive_rank", False) and arm.model.adapted():
        clauses.append(ranks_text(True, arm))
    return "; ".join(clauses)
