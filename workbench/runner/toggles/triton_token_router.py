"""Choose and gather the tokens that a routed block computes, in one kernel.

Counted for 8 x 1,024 tokens of width 768 in BF16, with 1/8 of them selected: 3 MB moved, which
takes little time on any GPU. The saving is fewer kernel launches.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("token_router", "Token router", __doc__)
