"""Weighting a routed block's results and adding them to their tokens, in one kernel.

Counted for 8 x 1,024 tokens of width 768 in BF16, 1/8 of them computed: 27 MB to move, and 3 MB
more where weighting is a pass of its own.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("token_scatter", "Token scatter", __doc__)
