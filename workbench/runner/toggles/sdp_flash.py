"""Whether torch may choose FlashAttention where it chooses for itself.

The fastest for FP16 and BF16 without a mask; forbid it to see what it gives, or to tell it from an
error of its own.
"""

from workbench.runner.toggles._sdp_toggle import sdp_toggle

TOGGLE = sdp_toggle("sdp_flash", "flash", __doc__)
