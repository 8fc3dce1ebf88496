"""The paths of a variant's steps: what computed its experts, and the ranks of its heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kernels
from models import Model
from workbench.runner.toggles._adapting import ranks_text


def path_text(usage: Mapping[str, Mapping[str, int]], config: Any, model: Model) -> str:
    """Return which of several paths ran, and which ranks the heads use; empty for none.

    The paths are those of the watched step. Reading the ranks waits for the device.
    """
    clauses = [
        f"{name} by {' and '.join(calls)}"
        for name, calls in usage.items()
        if kernels.OPS[name].standard is not None
    ]
    if getattr(config, "adaptive_rank", False) and model.adapted():
        clauses.append(ranks_text(model))
    return "; ".join(clauses)
