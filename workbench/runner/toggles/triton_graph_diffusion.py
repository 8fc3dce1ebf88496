"""All diffusion steps of the memory in one kernel, the weights of a sample staying on the chip."""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("graph_diffusion", "Graph diffusion", __doc__)
