"""Keep the residual stream of all blocks in one buffer that is allocated once.

For inference only; ``torch.compile`` plans memory itself. Reduces calls of the allocator, whose
time a GPU's queue mostly hides, and the peak memory. Conflicts with *In-place additions*. Counted
for MoE base, 8 x 1,024 tokens in BF16: all 24 additions of a pass use one buffer of 12.6 MB.
"""

from workbench.runner.toggles._field_toggle import field_toggle
from workbench.runner.toggles._residual import needs_inference, nothing_placed, placed_text

TOGGLE = field_toggle(
    "reuse_buffers",
    "Reuse buffers",
    __doc__,
    group="Memory",
    needs=needs_inference,
    idle=nothing_placed,
    facts=placed_text,
    same_mathematics=True,
)
