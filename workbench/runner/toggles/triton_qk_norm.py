"""Root-mean-square norms of queries and keys in one kernel.

The bundled families turn what they normalise, and so call QK-norm with RoPE instead; it is for
models of one's own. Counted for 8 x 1,024 tokens of 12 heads of 64 in BF16: 50 MB read and written,
and 126 MB where squares, means and products are passes of their own.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("qk_norm", "QK-norm", __doc__)
