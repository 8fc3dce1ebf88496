"""Root-mean-square normalisation in one pass over the row, forward and backward."""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("rms_norm", "RMSNorm", __doc__)
