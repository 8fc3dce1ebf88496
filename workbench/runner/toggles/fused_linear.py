"""Compute norms, gates and additions inside the linear layers of a decoding step.

With few sequences, a kernel for each takes longer to start than to run. *PyTorch* computes the same
in separate operators. Blocks in which several layers read one norm stay as they are.
On an H200, HYDRA base decodes a token for 8 sequences in 0.426 ms instead of 0.451 (BF16 weights,
compiled, in a CUDA graph, with kernels chosen by measurement).

In a forward pass of many tokens, a feed-forward layer's gate is computed inside its product, by a
kernel for Hopper: 8,192 tokens of HYDRA base take 82 us instead of 106 compiled (cold caches).
"""

from __future__ import annotations

from kernels import hardware
from models import LanguageModel
from models.language_model import DECODING
from workbench.protocol import Blocked
from workbench.runner.toggles._operator_toggle import operator_toggle
from workbench.runner.toggles._toggle import Situation
from workbench.runner.toggles.precision import TOGGLE as PRECISION
from workbench.runner.toggles.triton_linear import needs_few_rows

HOPPER = (9, 0)


def _switch(model: LanguageModel) -> None:
    model.set_fused_linear(True)


def _idle(model: LanguageModel) -> str:
    return "" if model.fused_linear else "no layer was fused: all have quantized weights"


def _needs(option: str, situation: Situation) -> Blocked | None:
    if situation.option(PRECISION.name) != "bf16":
        reason = "the weights need the 16-bit dtype that the layers compute in"
        return Blocked(reason, "Choose BF16 weights.", {PRECISION.name: "bf16"})
    if situation.workload.name in DECODING:
        return needs_few_rows(option, situation)
    if option == "triton" and hardware.of(situation.device).capability != HOPPER:
        reason = "the kernel for many rows is made for Hopper (H100, H200)"
        return Blocked(reason, "Choose a decoding workload.", {"workload": DECODING[0]})
    return None


TOGGLE = operator_toggle(
    "fused_linear",
    "fused_linear",
    "Fused linear layers",
    __doc__,
    group="Kernels",
    off="Separate",
    includes=("linear", "rms_norm", "swiglu"),
    switch=_switch,
    idle=_idle,
    needs=_needs,
)
