"""Squared ReLU: the activation of Primer.

    y = max(x, 0)^2

So et al., "Primer", 2021 (arXiv 2109.08668), section 3. The gradient is dx = 2 max(x, 0) dy.
Arithmetic is in FP32.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from kernels.core.autograd import applied, once_differentiable
from kernels.core.dispatch import run
from kernels.core.launch import launcher
from kernels.core.operator import (
    Case,
    Cost,
    Huge,
    Implementation,
    Inputs,
    Operator,
    Work,
    accumulator,
    blank,
    cdiv,
    floating,
    random_tensor,
    tensor_bytes,
)
from kernels.core.triton_helpers import missing, no_fp64, on_device, tl, triton

BLOCK = 1024


def squared_relu(x: Tensor, *, impl: str | None = None) -> Tensor:
    """Compute ``max(x, 0)^2``; x [...] of any shape and floating dtype, which the result has.

    ``impl``: auto, torch or triton. Raises ``Mistake`` for integers.
    """
    return run(OP, impl, x)


def reference(x: Tensor) -> Tensor:
    """Compute the definition."""
    return x.to(accumulator(x.dtype)).relu().square().to(x.dtype)


def _check(x: Tensor) -> None:
    floating("squared_relu", x=x)


@triton.jit
def _forward_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    b_x = tl.maximum(tl.load(x_ptr + o, mask=o < n, other=0.0).to(tl.float32), 0.0)
    tl.store(y_ptr + o, b_x * b_x, mask=o < n)


@triton.jit
def _backward_kernel(x_ptr, dy_ptr, dx_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    b_x = tl.maximum(tl.load(x_ptr + o, mask=o < n, other=0.0).to(tl.float32), 0.0)
    b_dy = tl.load(dy_ptr + o, mask=o < n, other=0.0).to(tl.float32)
    tl.store(dx_ptr + o, 2 * b_x * b_dy, mask=o < n)


_launch_forward = launcher(_forward_kernel)
_launch_backward = launcher(_backward_kernel)


class _SquaredReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        y = blank(x)
        if y.numel():
            with on_device(x):
                _launch_forward((cdiv(x.numel(), BLOCK),), x, y, x.numel(), BLOCK=BLOCK)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        dx, dy = blank(x), dy.contiguous()
        if dx.numel():
            with on_device(x):
                _launch_backward((cdiv(x.numel(), BLOCK),), x, dy, dx, x.numel(), BLOCK=BLOCK)
        return dx


def _triton(x: Tensor) -> Tensor:
    return applied(_SquaredReLU, x)


def _torch(x: Tensor) -> Tensor:
    return x.relu().square()


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    rows, dim = case.sizes["rows"], case.sizes["dim"]
    return {"x": random_tensor(rows, dim, device=device, dtype=dtype, seed=seed)}


def _cost(x: Tensor) -> Cost:
    size = tensor_bytes(x)
    return Cost(Work(2 * size, 2 * x.numel()), Work(3 * size, 3 * x.numel()))


def _sizes(random: Random) -> dict[str, int]:
    return {"rows": random.randint(0, 20), "dim": random.randint(1, 500)}


OP = Operator(
    name="squared_relu",
    function=squared_relu,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(_triton, missing, no_fp64),
        "torch": Implementation(_torch),
    },
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    huge=(Huge({"rows": (1 << 21) + 3, "dim": 1024}),),
    gradients=("x",),
    cases=(
        Case("63x100", {"rows": 63, "dim": 100}),
        Case("1x1", {"rows": 1, "dim": 1}),
        Case("0x64", {"rows": 0, "dim": 64}),
        Case("16384x2048", {"rows": 16384, "dim": 2048}, bench=True),
    ),
)
