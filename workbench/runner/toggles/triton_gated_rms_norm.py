"""Compute the norm after the scan, rms_norm(y * silu(z)), in one pass over the row.

On an H200 in BF16, 16,384 rows of 5120: 0.15 ms, compared with 0.24 ms as torch.compile fuses it.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("gated_rms_norm", "Gated RMSNorm", __doc__)
