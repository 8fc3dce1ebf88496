"""Allow torch to choose its plain products and softmax where it chooses for itself.

They hold the whole matrix of weights. Forbidden, a call that no fused kernel takes is an error
instead of a slow surprise. On an H200, HYDRA base training (8 x 1,024 tokens, AMP BF16): 2.42 times
the automatic choice's time and 1.5 times its peak.
"""

from workbench.runner.toggles._sdp_toggle import sdp_toggle

TOGGLE = sdp_toggle("sdp_math", "math", __doc__)
