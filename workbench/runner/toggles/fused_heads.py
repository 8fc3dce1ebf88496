"""Project tokens to queries, keys and values, and rotate these, by one operator.

On Hopper, one kernel multiplies, normalises (AdaAttn) and rotates, so that the product is not
written and read again. Elsewhere the product is PyTorch's, and a second kernel rotates. Steps with
gradients and decoded tokens stay as they are. On an H200, 8,192 tokens of HYDRA base take 36 us
instead of 45 compiled, and those of AdaAttn base 65 instead of 76 (BF16, cold caches).
"""

from __future__ import annotations

from models import LanguageModel
from models.layers.basic import Linear
from workbench.protocol import Blocked
from workbench.runner.toggles._operator_toggle import operator_toggle
from workbench.runner.toggles._toggle import Situation
from workbench.runner.toggles.precision import TOGGLE as PRECISION


def _switch(model: LanguageModel) -> None:
    model.set_fused_heads(True)


def _idle(model: LanguageModel) -> str:
    layers = [layer for layer in model.modules() if hasattr(layer, "fuses_heads")]
    if any(isinstance(layer.qkv, Linear) for layer in layers):
        return ""
    return "no projection rotated its heads: all have quantized weights"


def _needs(option: str, situation: Situation) -> Blocked | None:
    if not situation.option(PRECISION.name).startswith("amp"):
        return None
    reason = "autocast casts what the projection receives"
    return Blocked(reason, "Choose BF16 weights.", {PRECISION.name: "bf16"})


TOGGLE = operator_toggle(
    "fused_heads",
    "qkv_rope",
    "Fused projection of heads",
    __doc__,
    group="Kernels",
    off="Separate",
    includes=("rope", "qk_norm_rope"),
    switch=_switch,
    idle=_idle,
    needs=_needs,
)
