"""Attention in a step, for the ledger: its kernels, the reason for them, and how many fused."""

from __future__ import annotations

from collections.abc import Mapping

import kernels
from sessions.model import Scalar


def attention_facts(
    usage: dict[str, dict[str, int]], reasons: Mapping[str, tuple[str, str]]
) -> dict[str, Scalar]:
    """Return the facts of the watched step; empty if it called no attention.

    ``usage`` and ``reasons`` are those of the variant. The reason is the last call's; it is empty
    if the backend was requested by name.
    """
    used = kernels.attention_usage(usage)
    by, ratio = used["by_implementation"], used["flash_ratio"]
    fallbacks = used["fallbacks"]
    assert isinstance(by, dict) and isinstance(ratio, float) and isinstance(fallbacks, int)
    if not by:
        return {}
    operator = "attention" if "attention" in reasons else "adaptive_attention"
    _, reason = reasons.get(operator, ("", ""))
    return {
        "attention_calls": sum(by.values()),
        "attention_kernels": ", ".join(f"{name} {calls}" for name, calls in by.items()),
        "attention_reason": "" if reason == kernels.REQUESTED else reason,
        "attention_flash_ratio": round(ratio, 4),
        "attention_fallbacks": fallbacks,
    }
