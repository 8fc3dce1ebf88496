"""Compute the feed-forward networks of the experts as grouped products over sorted tokens.

*PyTorch* selects the best of its implementations for the device, the dtype and the sizes; the
evidence names the one that ran and says why a better one did not. The first choice is torch's
*grouped product* (one kernel in BF16 on Hopper and data-centre Blackwell; a C++ loop on a CPU). The
second is *padded blocks*, on a GPU or with torch.compile (at most about twice the necessary work,
any dtype). The last is a *loop over experts*, in eager code on a CPU. An implementation that is
chosen by name runs or raises an error. The loop synchronizes with the host, so CUDA graphs and
torch.compile do not support it. *Every expert (dense)* computes each token with all experts:
experts / k times the work.

On an H200 in BF16, 16,384 tokens to 8 of 64 experts: 3.3 ms with Triton, 6.5 ms with torch's
grouped product and 39 ms dense.
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
            "the loop over experts synchronizes with the host, which torch.compile and CUDA graphs "
            "do not support",
            "Choose padded blocks.",
            {"triton_moe_experts": "padded"},
        )
    if option != "grouped" or not situation.on_gpu:
        return None
    if hardware.of(situation.device).capability[0] not in ONE_KERNEL:
        return Blocked(
            "torch's grouped product is one kernel only on compute capability 9.0 and 10.0",
            "Choose padded blocks.",
            {"triton_moe_experts": "padded"},
        )
    if computing(situation) != torch.bfloat16:
        return Blocked(
            "torch's grouped product is one kernel only in BF16",
            "Compute in BF16.",
            {"precision": "amp_bf16"},
        )
    return None


TOGGLE = kernel_toggle("moe_experts", "MoE experts", __doc__, _needs)
