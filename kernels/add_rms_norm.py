"""Residual addition and root mean square normalisation in one pass.

    s = x + residual,    y = s / sqrt(mean(s^2) + eps) * weight

This is the step between two blocks of a pre-norm transformer (Zhang and Sennrich 2019, arXiv
1910.07467, for the norm): s continues as the residual stream, y enters the next block. With dn the
gradient that rms_norm has for s, dx = dresidual = dn + ds. Arithmetic is in FP32; y is computed
from the sum before it is rounded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.core.autograd import applied, needs_gradient, once_differentiable
from kernels.core.dispatch import run
from kernels.core.operator import (
    Case,
    Cost,
    Implementation,
    Inputs,
    Mistake,
    Operator,
    Work,
    accumulator,
    alike,
    always,
    random_tensor,
    tensor_bytes,
)
from kernels.core.triton_helpers import missing, no_fp64
from kernels.rms_norm import OP as RMS_NORM
from kernels.rms_norm import backward, forward, refuses
from kernels.rms_norm import reference as normalised


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    impl: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Return y and the sum.

    ``x`` and ``residual`` [..., D] of one shape; residual, and with it the sum, may have another
    dtype (a residual stream in FP32). ``weight`` [D] or None for ones. y has x's dtype. ``impl``:
    auto, torch or triton. Raises ``Mistake`` if shapes, dtypes or devices do not match.
    """
    return run(OP, impl, x, residual, weight, eps)


def _check(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float) -> None:
    alike("add_rms_norm", "x residual weight", x, residual, weight)
    if x.dim() == 0 or x.shape != residual.shape:
        raise Mistake(
            f"add_rms_norm: x and residual must have one shape of at least one dimension, but are "
            f"{tuple(x.shape)} and {tuple(residual.shape)}"
        )
    if weight is not None and weight.shape != x.shape[-1:]:
        raise Mistake(
            f"add_rms_norm: weight must have shape {tuple(x.shape[-1:])}, the last dimension of x "
            f"{tuple(x.shape)}, but has {tuple(weight.shape)}"
        )


def reference(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Compute the definition."""
    total = x.to(accumulator(x.dtype)) + residual
    return normalised(total, weight, eps).to(x.dtype), total.to(residual.dtype)


def _torch(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    if total.dtype != residual.dtype or (weight is not None and weight.dtype != total.dtype):
        return reference(x, residual, weight, eps)
    return torch.nn.functional.rms_norm(total, x.shape[-1:], weight, eps).to(x.dtype), total


class _AddRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, keep: bool
    ) -> tuple[Tensor, Tensor | None]:
        y, total, r = forward(x, residual, weight, eps, keep)
        ctx.save_for_backward(total, weight, r)
        ctx.dtype = x.dtype
        return y, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dtotal: Tensor) -> tuple[Tensor | None, ...]:
        total, weight, r = ctx.saved_tensors
        dresidual, dx, dweight = backward(dy, dtotal, total, weight, r, ctx.dtype)
        return dx, dresidual, dweight, None, None


def _triton(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    return applied(_AddRMSNorm, x, residual, weight, eps, needs_gradient(x, residual, weight))


def _refuses(x: Tensor, residual: Tensor, *_: Any) -> str | None:
    return refuses(x) or no_fp64(residual)


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    inputs = RMS_NORM.inputs(case, device, dtype, seed)
    x = inputs.pop("x")
    stream = torch.float32 if case.sizes.get("wide") else dtype
    residual = random_tensor(*x.shape, device=device, dtype=stream, seed=seed + 2)
    return {"x": x, "residual": residual} | inputs


def _cost(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float) -> Cost:
    n, weights = x.numel(), tensor_bytes(weight)
    narrow, wide = tensor_bytes(x), tensor_bytes(residual)
    return Cost(
        Work(2 * (narrow + wide) + weights, 5 * n),
        Work(
            narrow + 3 * wide + 2 * weights + (narrow if x.dtype != residual.dtype else 0), 11 * n
        ),
    )


OP = Operator(
    name="add_rms_norm",
    function=add_rms_norm,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(_triton, missing, _refuses, replayed=True),
        "torch": Implementation(_torch),
    },
    fused_by_compiler=always,
    inputs=_inputs,
    cost=_cost,
    sizes=RMS_NORM.sizes,
    huge=RMS_NORM.huge,
    gradients=("x", "residual", "weight"),
    cases=(
        *(case for case in RMS_NORM.cases if not case.bench),
        Case("33x300 wide stream", {"rows": 33, "dim": 300, "wide": True}),
        Case("16384x2560", {"rows": 16384, "dim": 2560}, bench=True),
        Case("16384x4096", {"rows": 16384, "dim": 4096}, bench=True),
        Case("16384x2560 wide stream", {"rows": 16384, "dim": 2560, "wide": True}, bench=True),
    ),
)
