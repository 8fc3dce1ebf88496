"""Compute all diffusion steps of the memory in one kernel; weights of a sample stay on the chip.

Counted for 64 samples, 64 slots and 3 steps in FP32: 32 KB of samples read and written instead of
98 KB, and one launch instead of at least one per step. Fewer launches save most of the time.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("graph_diffusion", "Graph diffusion", __doc__)
