"""The norm after the scan, rms_norm(y * silu(z)), in one pass over the row."""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("gated_rms_norm", "Gated RMSNorm", __doc__)
