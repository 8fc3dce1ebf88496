"""Product of a few rows with a weight matrix, as each layer of a decoding step computes it.

    y = x W^T + b

for x [..., K], W [N, K] and b [N]: the linear map of ``torch.nn.Linear``. With 16 rows or fewer the
weight is read once and each of its numbers is used a few times, so that memory bounds the product,
and libraries leave multiprocessors idle: their tiles are 64 or more outputs wide. Here a program
computes 16 outputs or so, of up to 16 rows.

Gradients are dx = dy W, dW = dy^T x and db = the sum of dy over the rows, by plain products.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from kernels.core.autograd import applied, once_differentiable
from kernels.core.dispatch import run
from kernels.core.operator import (
    Case,
    Cost,
    Huge,
    Implementation,
    Inputs,
    Operator,
    Work,
    accumulator,
    autocast_dtype,
    random_tensor,
    tensor_bytes,
    without_autocast,
)
from kernels.core.replay import replayed
from kernels.core.triton_helpers import missing
from kernels.core.tuning import Tunable
from kernels.linear._few_rows import (
    check_product,
    few_rows_key,
    few_rows_refusal,
    few_rows_tiles,
    multiply_few_rows,
)
from kernels.linear._kernels import linear_few_rows_kernel

FEW_ROWS = 16  # limit of this kernel; above it, tiles of many rows use the weight better


def linear(
    x: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None, *, impl: str | None = None
) -> Tensor:
    """Multiply ``x`` [..., K] by ``weight_NK`` [N, K] and add ``bias_N``; returns [..., N].

    All have one floating dtype, or that of autocast where it is on. ``impl``: auto, torch or
    triton (made for the inputs of ``is_for_few_rows``). Raises ``Mistake`` if the arguments do not
    fit together and ``Unavailable`` for an implementation that cannot run.
    """
    dtype = autocast_dtype(x)
    if dtype is not None:
        x, weight_NK = x.to(dtype), weight_NK.to(dtype)
        bias_N = None if bias_N is None else bias_N.to(dtype)
    return run(OP, impl, x, weight_NK, bias_N)


def is_for_few_rows(x: Tensor) -> bool:
    """Return True if the Triton kernel is made for ``x`` [..., K]: 16 rows or fewer, in 16 bits."""
    dtype = autocast_dtype(x) or x.dtype
    return dtype.itemsize == 2 and x.numel() <= FEW_ROWS * x.shape[-1]


def _check(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    check_product("linear", x, weight, {"bias": (bias, weight.shape[:1])})


def reference(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """Compute the definition."""
    wide = accumulator(x.dtype)
    with without_autocast(x):
        y = x.to(wide) @ weight_NK.to(wide).T
    return (y if bias_N is None else y + bias_N.to(wide)).to(x.dtype)


def _torch(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    with without_autocast(x):
        return nn.functional.linear(x, weight, bias)


_TILES = Tunable("linear.few_rows", (linear_few_rows_kernel,), few_rows_tiles, dots=True)


@replayed
def _few_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = torch.empty(*x.shape[:-1], len(weight), dtype=x.dtype, device=x.device)
    tile = _TILES.tile(few_rows_key(x, weight), _few_rows, x, weight, bias)
    multiply_few_rows(tile, x, weight, y, bias=bias)
    return y


class _FewRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _few_rows(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = dy.reshape(-1, dy.shape[-1])
        with without_autocast(dy):
            dx, dweight = dy @ weight, rows.T @ x.reshape(-1, x.shape[-1])
        dbias = rows.float().sum(0).to(dy.dtype) if ctx.has_bias else None
        return dx, dweight, dbias


def _triton(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return applied(_FewRows, x, weight, bias)


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    rows, k, n = case.sizes["rows"], case.sizes["k"], case.sizes["n"]
    make = {"device": device, "dtype": dtype}
    return {
        "x": random_tensor(rows, k, seed=seed, **make),
        "weight_NK": random_tensor(n, k, seed=seed + 1, scale=max(k, 1) ** -0.5, **make),
        "bias_N": random_tensor(n, seed=seed + 2, **make) if case.sizes.get("bias") else None,
    }


def _cost(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Cost:
    n, k = weight_NK.shape
    rows = x.numel() // max(k, 1)
    y_bytes, flops = rows * n * x.element_size(), 2 * rows * n * k
    x_bytes, fixed = tensor_bytes(x), tensor_bytes(weight_NK, bias_N)
    return Cost(
        Work(x_bytes + y_bytes + fixed, flops), Work(2 * x_bytes + y_bytes + 2 * fixed, 2 * flops)
    )


def _sizes(random: Random) -> dict[str, Any]:
    sizes = {"rows": random.randint(0, 20), "k": random.randint(1, 300), "n": random.randint(1, 80)}
    return sizes | {"bias": random.random() < 0.5}


def _case(rows: int, k: int, n: int, *, bias: bool = False, bench: bool = False) -> Case:
    sizes = {"rows": rows, "k": k, "n": n, "bias": bias}
    return Case(f"{rows}x{k}->{n}{' bias' * bias}", sizes, bench=bench, forward_only=bench)


def _end(inputs: Inputs) -> Inputs:
    """Return the inputs of the last two outputs: they need all of x."""
    return inputs | {"weight_NK": inputs["weight_NK"][-2:]}


OP = Operator(
    name="linear",
    function=linear,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(_triton, missing, few_rows_refusal, replayed=True),
        "torch": Implementation(_torch),
    },
    plain=_torch,
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    gradients=("x", "weight_NK", "bias_N"),
    huge=(Huge({"rows": 2, "k": 65536, "n": 32800}, _end),),
    cases=(
        _case(1, 33, 7),
        _case(3, 100, 33, bias=True),
        _case(8, 96, 130),
        _case(16, 1040, 63, bias=True),
        _case(0, 16, 5),
        _case(40, 64, 48, bias=True),
        _case(8, 768, 4096, bench=True),
        _case(8, 2048, 768, bench=True),
        _case(1, 4096, 4096, bench=True),
        _case(16, 4096, 28672, bench=True),
        _case(8, 768, 50304, bench=True),
    ),
)
