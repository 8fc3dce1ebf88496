"""Replace the depthwise causal convolutions of your model by the bundled operator.

It recognizes the function that Mamba-2 of transformers calls, with its activation, and depthwise
Conv1d layers of width 2 to 4 whose padding is the width minus one. Counted: 48 convolutions in each
step of Mamba-2 780M.
"""

from workbench.runner.foreign.mamba import patch_causal_conv1d
from workbench.runner.toggles._patch_toggle import patch_toggle

TOGGLE = patch_toggle(
    "patch_causal_conv1d",
    "causal_conv1d",
    "Causal convolution",
    __doc__,
    patch_causal_conv1d,
    modules="causal convolutions",
)
