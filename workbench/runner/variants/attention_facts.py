"""Attention in a step, for the ledger: its kernels, the reason for them, and how many fused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kernels
from sessions.model import Scalar

if TYPE_CHECKING:
    from workbench.runner.variants.variant import Arm


def attention_facts(arm: Arm) -> dict[str, Scalar]:
    """Return the facts of the watched step; empty if it called no attention.

    The reason is the last call's; it is empty where the backend was asked for by name.
    """
    used = kernels.attention_usage(arm.usage)
    by, ratio = used["by_implementation"], used["flash_ratio"]
    fallbacks = used["fallbacks"]
    assert isinstance(by, dict) and isinstance(ratio, float) and isinstance(fallbacks, int)
    if not by:
        return {}
    operator = "attention" if "attention" in arm.reasons else "adaptive_attention"
    _, reason = arm.reasons.get(operator, ("", ""))
    return {
        "attention_calls": sum(by.values()),
        "attention_kernels": ", ".join(f"{name} {calls}" for name, calls in by.items()),
        "attention_reason": "" if reason == kernels.REQUESTED else reason,
        "attention_flash_ratio": round(ratio, 4),
        "attention_fallbacks": fallbacks,
    }
