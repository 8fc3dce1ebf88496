"""Compute one step of the selective scan, for decoding: the state is read and written once.

Counted for Mamba-2 2.8B with its state in FP32: 5.2 MB per layer and sequence, and half of that
again for every further pass over the state.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("ssd_step", "SSD step", __doc__)
