"""Compressed convolutional attention (arXiv 2510.04476) in place of plain grouped-query attention.

Queries, keys and values are computed and compared in a smaller latent: fewer FLOPs and a smaller
decode cache. Counted for HYDRA base, 8 x 1,024 tokens: 0.89 of the forward pass's FLOPs; of
*published*, half of the decode cache a token.
"""

from workbench.runner.toggles._field_toggle import field_toggle

TOGGLE = field_toggle("ccgqa", "CCGQA", __doc__)
