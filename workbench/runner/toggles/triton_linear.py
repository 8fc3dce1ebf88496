"""Compute the linear layers of a decoding step by a kernel for a few rows.

A library's product leaves most of the GPU idle where each of 16 sequences or fewer adds a token. On
an H200, 2048 -> 768 with 8 rows in BF16 takes 4.0 us instead of 7.3, and 768 -> 4096 4.1 instead of
5.0. Bundled models use it with up to 16 sequences in 16 bits.
"""

from __future__ import annotations

from kernels.linear import FEW_ROWS
from workbench.protocol import Blocked
from workbench.runner.toggles._kernel_toggle import kernel_toggle
from workbench.runner.toggles._ranks import batch_ranks_of
from workbench.runner.toggles._toggle import Situation
from workbench.runner.toggles.precision import TOGGLE as PRECISION
from workbench.runner.toggles.precision import computing


def needs_few_rows(option: str, situation: Situation) -> Blocked | None:
    """Return why a bundled model computes all its linear layers by PyTorch."""
    if situation.family.operators is None:
        return None
    if computing(situation).itemsize != 2:
        reason = "the kernel is made for 16 bits, and these linear layers compute in 32"
        return Blocked(reason, "Choose BF16 weights.", {PRECISION.name: "bf16"})
    rows = int(situation.configuration.settings["batch"]) // batch_ranks_of(situation)
    if rows <= FEW_ROWS:
        return None
    return Blocked(
        f"the kernel is made for up to {FEW_ROWS} sequences, and a step has {rows}",
        f"Set the batch to {FEW_ROWS} or less.",
    )


TOGGLE = kernel_toggle("linear", "Linear layers of few rows", __doc__, needs_few_rows)
