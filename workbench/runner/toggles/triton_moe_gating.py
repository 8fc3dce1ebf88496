"""Router linear, softmax and top-k in one kernel that never waits for the host."""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("moe_gating", "MoE gating", __doc__)
