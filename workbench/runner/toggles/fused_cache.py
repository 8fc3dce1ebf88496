"""Rotate a decoded token's queries and keys, and write keys and values to the cache, in one kernel.

The kernel also includes norms of queries and keys, and AdaAttn's matrices of the heads. With few
sequences, a kernel for each of these takes longer to start than to run. *PyTorch* computes the same
in separate operators. On an H200, 8 sequences with heads as in HYDRA base take 2.0 us instead of
5.7 compiled, and with heads as in AdaAttn base 2.5 instead of 14.9 (kernel time, BF16).
"""

from __future__ import annotations

from models import LanguageModel
from models.layers.adaptive.heads import AdaptiveHeads
from workbench.runner.toggles._operator_toggle import operator_toggle


def _switch(model: LanguageModel) -> None:
    model.set_fused_cache(True)


def _idle(model: LanguageModel) -> str:
    if any(isinstance(layer, AdaptiveHeads) for layer in model.modules()):
        return "no layer wrote to the cache directly: its keys are rounded before they are written"
    return ""


TOGGLE = operator_toggle(
    "fused_cache",
    "rope_to_cache",
    "Fused cache writes",
    __doc__,
    group="Kernels",
    off="Separate",
    includes=("rope", "qk_norm_rope"),
    switch=_switch,
    idle=_idle,
)
