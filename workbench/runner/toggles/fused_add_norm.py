"""Add a branch's output to the residual stream and normalise the sum in one pass.

The last addition, and those before and after a checkpointed block, stay separate. *PyTorch* is the
same two operations in one call: a compiler can fuse them, and without one it is not faster.
On an H200 in BF16, 16,384 rows of 4096: 0.14 ms forward and 0.14 ms backward by Triton, 0.18 and
0.32 ms in PyTorch.
"""

from __future__ import annotations

from models import LanguageModel
from models.execution.checkpointing import CHECKPOINTING
from workbench.runner.toggles._operator_toggle import operator_toggle


def _switch(model: LanguageModel) -> None:
    model.set_fused_add_norm(True)


def _idle(model: LanguageModel) -> str:
    if model.fused_additions:
        return ""
    if model.fused_linear:
        return "no addition was fused with a norm: linear layers include both"
    stride = CHECKPOINTING[model.checkpointing]
    if stride:
        blocks = len(model.blocks[::stride])
        are = "block is" if blocks == 1 else "blocks are"
        return f"no addition was fused: {blocks} {are} checkpointed"
    return "no addition was fused: no block is followed by another block on the same rank"


TOGGLE = operator_toggle(
    "fused_add_norm",
    "add_rms_norm",
    "Fused add and norm",
    __doc__,
    group="Kernels",
    off="Separate",
    switch=_switch,
    idle=_idle,
)
