"""Replace grouped-query attention by compressed convolutional attention (arXiv 2510.04476).

Queries, keys and values are computed and compared in a smaller latent space: fewer FLOPs and a
smaller decode cache. Counted for HYDRA base, 8 x 1,024 tokens: 0.89 times the FLOPs of the forward
pass. For the preset *published*, the decode cache per token is half as large.
"""

from workbench.runner.toggles._field_toggle import field_toggle

TOGGLE = field_toggle("ccgqa", "CCGQA", __doc__)
