"""Attention whose heads differ in rank and precision, in one kernel or with plain attention.

PyTorch cuts and rounds queries and keys first, and then attends with any backend; *S x S matrix* is
the definition. Triton reads fewer columns of a head of low rank, which is where time is saved. On
an H200, AdaAttn small, forward, 4 x 2,048 tokens in BF16, with adaptive rank and precision: 1.60
times as fast as the S x S matrix, and plain attention by the best backend 2.15 times.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("adaptive_attention", "Adaptive attention", __doc__)
