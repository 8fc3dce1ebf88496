"""Replace gelu(gate) * up in the feed-forward layers of your model by one kernel.

A layer is replaced only if a small copy of it and the operator agree in FP64, including gradients.
Both GELU variants are supported: exact, and with the tanh approximation. Counted: Gemma 3 1B has 26
such layers.
"""

import functools

from workbench.runner.foreign.gated_mlp import patch_gated_mlp
from workbench.runner.toggles._patch_toggle import patch_toggle

TOGGLE = patch_toggle(
    "patch_geglu",
    "geglu",
    "GEGLU",
    __doc__,
    functools.partial(patch_gated_mlp, "geglu"),
    modules="gated layers with GELU",
)
