"""Weighting a routed block's results and adding them to their tokens, in one kernel."""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("token_scatter", "Token scatter", __doc__)
