"""Choose each head's number format from its scores, instead of one for all.

On an H200, AdaAttn small, forward, 4 x 2,048 tokens in BF16: attention by the best backend alone is
2.15 times as fast as the S x S matrix, and 1.60 with the Triton kernels and adaptive rank and
precision on top. Inputs of 16 bits stay as they are, unless FP8 is allowed.
"""

from workbench.runner.toggles._field_toggle import field_toggle

TOGGLE = field_toggle("adaptive_precision", "Adaptive precision", __doc__)
