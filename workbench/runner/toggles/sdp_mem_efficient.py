"""Whether torch may choose its memory-efficient kernel where it chooses for itself.

It takes masks and FP32, which FlashAttention does not; forbidden, those calls go to the math
backend, which holds the whole matrix of weights.
"""

from workbench.runner.toggles._sdp_toggle import sdp_toggle

TOGGLE = sdp_toggle("sdp_mem_efficient", "memory-efficient", __doc__)
