"""Add a block's result to the stream and normalise the sum for the next block in one pass over it.

Needs blocks of one branch behind one norm, as Mamba-2's are; a block that is checkpointed adds and
normalises for itself. Triton reads and writes the stream once instead of three times. *PyTorch* is
the same two steps, in one call: for a compiler to fuse, and no faster without one.
"""

from __future__ import annotations

from models import LanguageModel
from workbench.runner.toggles._operator_toggle import operator_toggle


def _switch(model: LanguageModel) -> None:
    model.set_fused_add_norm(True)


def _idle(model: LanguageModel) -> str:
    if model.fused_additions:
        return ""
    return f"no addition was fused: {model.checkpointed_blocks} of the blocks are checkpointed"


TOGGLE = operator_toggle(
    "fused_add_norm",
    "add_rms_norm",
    "Fused add and norm",
    __doc__,
    group="Kernels",
    off="Apart",
    switch=_switch,
    idle=_idle,
)
