"""Choosing and gathering the tokens that a routed block computes, in one kernel.

Counted for 8 x 1,024 tokens of width 768 in BF16, 1/8 of them taken: 3 MB to move, which no GPU
takes long for; what it saves are launches.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("token_router", "Token router", __doc__)
