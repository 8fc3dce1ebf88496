"""Mixture of depths (arXiv 2404.02258): a router selects a fixed share of tokens for a block.

The other tokens skip the block, which saves their attention and feed-forward. Counted for HYDRA
base, 8 x 1,024 tokens, with 1/8 of them selected: 0.70 times the FLOPs of the forward pass.
"""

from workbench.runner.toggles._field_toggle import field_toggle

TOGGLE = field_toggle("mixture_of_depths", "Mixture of depths", __doc__)
