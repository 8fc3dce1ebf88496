"""Rotary position embedding of queries and keys in one kernel, backward included."""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("rope", "RoPE", __doc__)
