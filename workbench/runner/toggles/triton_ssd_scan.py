"""Compute the selective scan of Mamba-2 over whole sequences in chunks, forward and backward.

Helps most with long sequences. On an H200 in BF16, 32,768 tokens of 80 heads: 0.90 ms, compared
with 22 ms in PyTorch.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("ssd_scan", "SSD scan", __doc__)
