"""The gated activation silu(gate) * up in one kernel, without storing silu(gate)."""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("swiglu", "SwiGLU", __doc__)
