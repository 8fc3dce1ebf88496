"""The gated activation gelu(gate) * up in one kernel, without storing gelu(gate).

No bundled family has it.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("geglu", "GEGLU", __doc__)
