"""The short convolution along the sequence, with its activation, in one kernel.

On an H200 in BF16, 32,768 tokens of 5376 channels: 0.23 ms, and 5.9 ms by PyTorch.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("causal_conv1d", "Causal convolution", __doc__)
