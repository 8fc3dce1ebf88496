"""Mixture of depths (arXiv 2404.02258): a router lets a fixed share of the tokens into a block.

The others pass it by, which saves their attention and feed-forward. Counted for HYDRA base, 8 x
1,024 tokens, 1/8 of them let in: 0.70 of the forward pass's FLOPs.
"""

from workbench.runner.toggles._field_toggle import field_toggle

TOGGLE = field_toggle("mixture_of_depths", "Mixture of depths", __doc__)
