"""Choosing and gathering the tokens that a routed block computes, in one kernel."""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("token_router", "Token router", __doc__)
