"""The gated activation gelu(gate) * up in one kernel, without storing gelu(gate).

No bundled family has it; models of one's own may. Counted for 16,384 rows of 2048 in BF16: 201 MB
read and written, and 336 MB where gelu(gate) is stored.
"""

from workbench.runner.toggles._kernel_toggle import kernel_toggle

TOGGLE = kernel_toggle("geglu", "GEGLU", __doc__)
