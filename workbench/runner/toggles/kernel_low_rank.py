"""The computation of the basis of low-rank attention: a full SVD, or subspace iterations.

An SVD is exact, but slow on a GPU. The iterations start from the basis of the last call. On an
H200, AdaAttn base, forward, 8 x 1,024 tokens: 292 ms with full SVDs, 35 ms with iterations.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("low_rank", "Low-rank basis by", __doc__)
