"""Choose each head's number format from its scores, instead of one format for all heads.

16-bit inputs are not rounded further, unless FP8 is allowed. On an H200, AdaAttn small, forward, 4
x 2,048 tokens in BF16, compared with the S x S matrix: plain attention with the best backend is
2.15 times as fast, and the Triton kernels with adaptive rank and precision are 1.60 times as fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sessions.numbers import counted
from workbench.runner.toggles._adapting import bits, calls
from workbench.runner.toggles._field_toggle import field_toggle
from workbench.runner.toggles.precision import computing

if TYPE_CHECKING:
    from workbench.runner.variants.observed import Observed


def _idle(value: Any, observed: Observed) -> str:
    """Return why no head's number format changed; empty if one did."""
    if not value:
        return ""
    dtype = computing(observed.situation)
    if not observed.situation.config.rules.rounds(dtype):
        return (
            f"no head's number format changed: {str(dtype)[6:]} inputs are rounded only if the "
            "model allows FP8"
        )
    if set(bits(observed.model)) == {32}:
        after = calls(observed.model, observed.situation.workload)
        return f"every head keeps the 32 bits of its inputs after {after}: none was rounded"
    return ""


def _facts(value: Any, observed: Observed) -> str:
    if not value:
        return ""
    shown = (
        f"{counted(heads, 'head')} in {width} bits" for width, heads in bits(observed.model).items()
    )
    return f"queries and keys: {', '.join(shown)}"


TOGGLE = field_toggle(
    "adaptive_precision",
    "Adaptive precision",
    __doc__,
    idle=_idle,
    facts=_facts,
    same_mathematics=True,
)
