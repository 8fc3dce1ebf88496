"""Allow torch to choose FlashAttention when it chooses the SDPA backend.

The fastest for FP16 and BF16 without a mask. Forbid it to measure its benefit, or to check whether
it causes an error. On an H200, HYDRA base training (8 x 1,024 tokens, AMP BF16): 1.05 times the
time of cuDNN, which torch chooses there, so forbidding flash costs nothing if cuDNN runs.
"""

from workbench.runner.toggles._sdp_toggle import sdp_toggle

TOGGLE = sdp_toggle("sdp_flash", "flash", __doc__)
