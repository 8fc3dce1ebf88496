"""SwiGLU: the gated activation of current feed-forward layers.

    y = silu(gate) * up,    silu(x) = x / (1 + exp(-x))

Shazeer, "GLU Variants Improve Transformer", 2020 (arXiv 2002.05202), equation 6, without its linear
maps. With s = 1 / (1 + exp(-gate)), the gradients are

    dgate = dy up (s + gate s (1 - s)),    dup = dy gate s.

Nothing but the inputs is kept for the backward pass. Arithmetic is in FP32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels import _gated
from kernels.core.dispatch import run
from kernels.core.operator import Implementation, Operator, accumulator
from kernels.core.triton_helpers import missing, no_fp64
from kernels.measure import peers


def swiglu(gate: Tensor, up: Tensor | None = None, *, impl: str | None = None) -> Tensor:
    """Compute ``silu(gate) * up``.

    ``gate`` and ``up`` [..., F] of one shape and floating dtype, or ``gate`` alone [..., 2 F] with
    the gate in the first half and up in the second. Returns [..., F] in gate's dtype. ``impl``:
    auto, torch or triton. Raises ``Mistake`` if shapes, dtypes or devices do not match.
    """
    return run(OP, impl, gate, up)


def _check(gate: Tensor, up: Tensor | None) -> None:
    _gated.validate("swiglu", gate, up)


def reference(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """Compute the definition."""
    gate, up = _gated.halves(gate, up)
    wide = accumulator(gate.dtype)
    return (torch.nn.functional.silu(gate.to(wide)) * up.to(wide)).to(gate.dtype)


def _torch(gate: Tensor, up: Tensor | None) -> Tensor:
    gate, up = _gated.halves(gate, up)
    return torch.nn.functional.silu(gate) * up


def _triton(gate: Tensor, up: Tensor | None) -> Tensor:
    return _gated.gated(gate, up, "silu")


OP = Operator(
    name="swiglu",
    function=swiglu,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(_triton, missing, no_fp64, replayed=True),
        "torch": Implementation(_torch),
        **peers.options("swiglu"),
    },
    fused_by_compiler=_gated.is_fused_by_compiler,
    inputs=_gated.inputs,
    cost=_gated.cost,
    sizes=_gated.sizes,
    huge=_gated.HUGE,
    gradients=("gate", "up"),
    cases=_gated.CASES,
)
