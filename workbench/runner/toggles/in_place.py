"""Add the residual stream to the output of a branch in place, instead of in new memory.

For inference only. It has no effect if the branch's output has a narrower dtype than the residual
stream, as with AMP, or with ``torch.compile``, which plans memory itself. Conflicts with *Reuse
buffers*. Counted for MoE base, 8 x 1,024 tokens in BF16: each of the 24 additions writes into 12.6
MB of existing memory.
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
