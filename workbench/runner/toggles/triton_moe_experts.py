"""The experts' feed-forward networks as grouped products over tokens sorted by expert.

*PyTorch* takes the best of its own ways for the device, the dtype and the sizes, and the evidence
says which one ran and why no better one: torch's *grouped product* (one kernel in BF16 on Hopper
and data-centre Blackwell; a loop in C++ on a CPU), else *padded blocks* on a GPU or compiled (about
twice the chosen work at most, any dtype), else a *loop over experts* in eager code on a CPU. A way
that is chosen by name runs or is an error. The loop waits for the host, so that no graph and no
compiler takes it. *Every expert (dense)* takes each token through all of them, experts / k times
the work.

On an H200 in BF16, 16,384 tokens to 8 of 64 experts: 3.3 ms by Triton, 6.5 ms by torch's grouped
product and 39 ms dense.
"""

from __future__ import annotations

import torch

from kernels import hardware
from kernels.moe_experts import ONE_KERNEL
from workbench.protocol import Blocked
from workbench.runner.toggles._kernel_toggle import kernel_toggle
from workbench.runner.toggles._toggle import (
    Situation,
    Trait,
)
from workbench.runner.toggles.precision import computing


def _needs(option: str, situation: Situation) -> Blocked | None:
    graphs = situation.has(Trait.COMPILED, Trait.CAPTURED)
    if option == "loop" and graphs:
        return Blocked(
            "the loop over experts waits for the host, which no compiler and no CUDA graph takes",
            "Choose padded blocks.",
            {"triton_moe_experts": "padded"},
        )
    if option != "grouped" or not situation.on_gpu:
        return None
    if hardware.of(situation.device).capability[0] not in ONE_KERNEL:
        return Blocked(
            "torch's grouped product is one kernel on compute capability 9.0 and 10.0 alone",
            "Choose padded blocks.",
            {"triton_moe_experts": "padded"},
        )
    if computing(situation) != torch.bfloat16:
        return Blocked(
            "torch's grouped product is one kernel in BF16 alone",
            "Compute in BF16.",
            {"precision": "amp_bf16"},
        )
    return None


TOGGLE = kernel_toggle("moe_experts", "MoE experts", __doc__, _needs)
