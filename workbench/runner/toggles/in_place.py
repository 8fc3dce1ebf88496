"""Add the residual stream into what a branch returned, instead of into new memory.

Inference only, and without effect where a branch's result is narrower than the stream, as under
AMP, or where ``torch.compile`` plans memory. Conflicts with *Reuse buffers*. Counted for MoE base,
8 x 1,024 tokens in BF16: each of the 24 additions writes into 12.6 MB that are there already.
"""

from workbench.runner.toggles._field_toggle import field_toggle
from workbench.runner.toggles._residual import needs_inference, nothing_placed, placed_text

TOGGLE = field_toggle(
    "in_place",
    "In-place additions",
    __doc__,
    group="Memory",
    needs=needs_inference,
    idle=nothing_placed,
    facts=placed_text,
    same_mathematics=True,
)
