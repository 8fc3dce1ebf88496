"""Normalise and rotate queries and keys in one kernel, which reads and writes them once.

Counted for AdaAttn base, 8 x 1,024 tokens in BF16: 50 MB moved in each layer, instead of 101 MB
with two kernels.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("qk_norm_rope", "QK-norm with RoPE", __doc__)
