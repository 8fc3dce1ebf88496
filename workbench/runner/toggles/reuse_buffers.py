"""Keep the residual stream of all blocks in one buffer that is allocated once.

Inference only; ``torch.compile`` plans memory itself. Fewer calls of the allocator, which a GPU's
queue mostly hides, and a lower peak. Conflicts with *In-place additions*.
"""

from workbench.runner.toggles._field_toggle import field_toggle
from workbench.runner.toggles._residual import needs_inference, nothing_placed

TOGGLE = field_toggle(
    "reuse_buffers",
    "Reuse buffers",
    __doc__,
    group="Memory",
    held="buffer",
    needs=needs_inference,
    idle=nothing_placed,
)
