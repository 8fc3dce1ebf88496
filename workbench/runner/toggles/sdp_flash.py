"""Allow torch to choose FlashAttention where it chooses for itself.

The fastest for FP16 and BF16 without a mask; forbid it to see what it gives, or to tell it from an
error of its own. On an H200, HYDRA base training (8 x 1,024 tokens, AMP BF16): 1.05 of the
time of cuDNN's, which torch chooses there; so forbidding it costs nothing where cuDNN runs.
"""

from workbench.runner.toggles._sdp_toggle import sdp_toggle

TOGGLE = sdp_toggle("sdp_flash", "flash", __doc__)
