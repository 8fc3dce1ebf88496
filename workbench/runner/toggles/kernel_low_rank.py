"""The basis that attention of low rank works in: a full SVD, or iterations of a subspace.

An SVD is exact, and slow on a GPU; the iterations go on from the last call's basis. On an H200,
AdaAttn base, forward, 8 x 1,024 tokens: 292 ms with full SVDs, 35 ms with iterations.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("low_rank", "Low-rank basis by", __doc__)
