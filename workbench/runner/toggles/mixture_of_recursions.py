"""Mixture of recursions (arXiv 2507.10524): shared blocks run as often as a token needs.

It improves quality for the number of weights, but not time. Counted for HYDRA base, 8 x 1,024
tokens: 2.1 times the FLOPs with 1.11 times the parameters.
"""

from workbench.runner.toggles._field_toggle import field_toggle

TOGGLE = field_toggle("mixture_of_recursions", "Mixture of recursions", __doc__)
