"""Norms of queries and keys and their rotary positions, read and written once.

Counted for AdaAttn base, 8 x 1,024 tokens in BF16: 50 MB moved in each layer, and 101 MB by two
kernels after one another.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("qk_norm_rope", "QK-norm with RoPE", __doc__)
