"""Mixture of recursions (arXiv 2507.10524): shared blocks, applied as often as a token needs."""

from workbench.runner.toggles._field_toggle import field_toggle

TOGGLE = field_toggle("mixture_of_recursions", "Mixture of recursions", __doc__)
