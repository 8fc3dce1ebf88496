"""Compute the short convolution along the sequence, and its activation, in one kernel.

On an H200 in BF16, 32,768 tokens of 5376 channels: 0.23 ms, compared with 5.9 ms in PyTorch.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("causal_conv1d", "Causal convolution", __doc__)
