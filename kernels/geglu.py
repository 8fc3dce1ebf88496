"""GEGLU: the gated activation with the Gaussian error linear unit.

    y = gelu(gate) * up,    gelu(x) = x Phi(x), or with the tanh approximation of Phi

Shazeer, "GLU Variants Improve Transformer", 2020 (arXiv 2002.05202), equation 6; GELU: Hendrycks
and Gimpel 2016 (arXiv 1606.08415), section 2. The gradients are

    dgate = dy up (Phi(gate) + gate phi(gate)),    dup = dy gelu(gate).

Nothing but the inputs is kept for the backward pass. Arithmetic is in FP32.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from kernels import _gated
from kernels.core.dispatch import run
from kernels.core.operator import Case, Implementation, Inputs, Mistake, Operator, accumulator
from kernels.core.triton_helpers import missing, no_fp64

APPROXIMATIONS = ("none", "tanh")


def geglu(
    gate: Tensor, up: Tensor | None = None, approximate: str = "none", *, impl: str | None = None
) -> Tensor:
    """Compute ``gelu(gate) * up``.

    ``gate`` and ``up`` [..., F] of one shape and floating dtype, or ``gate`` alone [..., 2 F] with
    the gate in the first half and up in the second. ``approximate`` is "none" or "tanh", as in
    torch. Returns [..., F] in gate's dtype. ``impl``: auto, torch or triton. Raises ``Mistake`` if
    shapes, dtypes or devices do not match.
    """
    return run(OP, impl, gate, up, approximate)


def _check(gate: Tensor, up: Tensor | None, approximate: str) -> None:
    _gated.validate("geglu", gate, up)
    if approximate not in APPROXIMATIONS:
        raise Mistake(f"geglu: approximate must be one of {APPROXIMATIONS}, not {approximate!r}")


def reference(gate: Tensor, up: Tensor | None = None, approximate: str = "none") -> Tensor:
    """Compute the definition."""
    gate, up = _gated.halves(gate, up)
    wide = accumulator(gate.dtype)
    act = torch.nn.functional.gelu(gate.to(wide), approximate=approximate)
    return (act * up.to(wide)).to(gate.dtype)


def _torch(gate: Tensor, up: Tensor | None, approximate: str) -> Tensor:
    gate, up = _gated.halves(gate, up)
    return torch.nn.functional.gelu(gate, approximate=approximate) * up


def _triton(gate: Tensor, up: Tensor | None, approximate: str) -> Tensor:
    return _gated.gated(gate, up, "gelu" if approximate == "none" else "gelu_tanh")


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    approximate = case.sizes.get("approximate", "none")
    return _gated.inputs(case, device, dtype, seed) | {"approximate": approximate}


def _sizes(random: Random) -> dict[str, Any]:
    return _gated.sizes(random) | {"approximate": random.choice(APPROXIMATIONS)}


OP = Operator(
    name="geglu",
    function=geglu,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(_triton, missing, no_fp64, replayed=True),
        "torch": Implementation(_torch),
    },
    fused_by_compiler=_gated.is_fused_by_compiler,
    inputs=_inputs,
    cost=_gated.cost,
    sizes=_sizes,
    huge=_gated.HUGE,
    gradients=("gate", "up"),
    cases=(Case("63x100 tanh", {"rows": 63, "dim": 100, "approximate": "tanh"}), *_gated.CASES),
)
