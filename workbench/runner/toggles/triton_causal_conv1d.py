"""The short convolution along the sequence, with its activation, in one kernel."""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("causal_conv1d", "Causal convolution", __doc__)
