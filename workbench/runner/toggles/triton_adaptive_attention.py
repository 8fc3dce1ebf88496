"""Attention whose heads differ in rank and precision, in one kernel or with plain attention.

PyTorch cuts and rounds queries and keys first, and then attends with any backend; *S x S matrix*
is the definition. Triton reads fewer columns of a head of low rank, which is where time is saved.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("adaptive_attention", "Adaptive attention", __doc__)
