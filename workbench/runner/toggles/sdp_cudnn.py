"""Allow torch to choose cuDNN's attention where it chooses for itself.

On Hopper and later often the fastest for FP16 and BF16; torch plans it once for every new shape,
which costs time where shapes change. On an H200, HYDRA base training (8 x 1,024 tokens, AMP BF16):
1.00 of the automatic choice's time.
"""

from workbench.runner.toggles._sdp_toggle import sdp_toggle

TOGGLE = sdp_toggle("sdp_cudnn", "cuDNN", __doc__)
