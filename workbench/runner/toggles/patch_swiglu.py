"""Replace silu(gate) * up in the feed-forward layers of your model by one kernel.

A layer is replaced only if a small copy of it and the operator agree in FP64, including gradients.
Its linear layers do not change. Counted: Llama 3.1 8B has 32 such layers.
"""

import functools

from workbench.runner.foreign.gated_mlp import patch_gated_mlp
from workbench.runner.toggles._patch_toggle import patch_toggle

TOGGLE = patch_toggle(
    "patch_swiglu",
    "swiglu",
    "SwiGLU",
    __doc__,
    functools.partial(patch_gated_mlp, "swiglu"),
    modules="gated layers with SiLU",
)
