"""Norms of queries and keys and their rotary positions, read and written once."""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("qk_norm_rope", "QK-norm with RoPE", __doc__)
