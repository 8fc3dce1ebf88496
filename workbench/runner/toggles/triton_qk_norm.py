"""Root-mean-square norms of queries and keys in one kernel.

The bundled families turn what they normalise, and so call QK-norm with RoPE instead.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("qk_norm", "QK-norm", __doc__)
