"""The selective scan of Mamba-2 over whole sequences, in chunks, forward and backward."""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("ssd_scan", "SSD scan", __doc__)
