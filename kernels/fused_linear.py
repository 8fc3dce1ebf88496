"""Product with a weight matrix, with what surrounds it in a decoding step or a feed-forward layer.

    y = norm(x) W^T + r,  norm(x) = w * x / sqrt(mean(x^2) + eps)   (arXiv 1910.07467)

for x [..., K], W [N, K], w [K] and r [..., N]; w and r may be absent. *Gated*, W is [2 N, K], and y
is silu(norm(x) G^T) * (norm(x) U^T) + r for its halves G and U (SwiGLU, arXiv 2002.05202).

Norm, gate and residual are small beside the weight, and a kernel for each takes longer to start
than to run. Every program reads its rows anyway, so that it can also compute their norm: the norm's
factor for a row is known after the last number, and multiplies the products.

In FP16 the numbers before that factor may be too large, so that the kernel refuses it with a norm.

That kernel is for a few rows. For many rows there is one with a gate alone, on Hopper. Elsewhere
torch multiplies many rows, and a second kernel gates.

There are no gradients: they need the product, which is not stored.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kernels import _gated
from kernels.core.dispatch import run
from kernels.core.operator import (
    Case,
    Cost,
    Huge,
    Implementation,
    Inputs,
    Mistake,
    Operator,
    Work,
    accumulator,
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
from kernels.linear._many_rows import gate_many_rows, is_for_many_rows

MOST_ROWS = 64  # the kernel for few rows reads the weight once per 16 rows
_PARTS = ("norm", "residual", "gated")  # parts that a fused product may have


def fused_linear(
    x: Tensor,
    weight_NK: Tensor,
    norm_K: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
    eps: float = 0.0,
    *,
    impl: str | None = None,
) -> Tensor:
    """Multiply ``norm(x)`` by ``weight_NK``, gate the product and add ``residual``: [..., N].

    x [..., K], weight_NK [N, K] (gated: [2 N, K], the gate's rows first), norm_K [K] and residual
    [..., N] have one floating dtype, also under autocast. ``eps`` is the norm's. ``impl``: auto,
    torch or triton. Raises ``Mistake`` if the arguments do not fit together or need a gradient, and
    ``Unavailable`` for an implementation that cannot run.
    """
    return run(OP, impl, x, weight_NK, norm_K, residual, gated, eps)


def _check(
    x: Tensor,
    weight: Tensor,
    norm: Tensor | None,
    residual: Tensor | None,
    gated: bool,
    eps: float,
) -> None:
    width = weight.shape[0] // 2 if gated and weight.dim() == 2 else weight.shape[:1].numel()
    parts = {"norm": (norm, x.shape[-1:]), "residual": (residual, (*x.shape[:-1], width))}
    check_product("fused_linear", x, weight, parts)
    if gated and len(weight) % 2:
        raise Mistake(
            f"fused_linear: a gated weight needs an even number of rows, but has {len(weight)}"
        )
    if torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (x, weight, norm, residual)
    ):
        raise Mistake("fused_linear: it computes no gradients; call it under torch.no_grad()")


def reference(
    x: Tensor,
    weight_NK: Tensor,
    norm_K: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
    eps: float = 0.0,
) -> Tensor:
    """Compute the definition."""
    wide = accumulator(x.dtype)
    with without_autocast(x):
        h = x.to(wide)
        if norm_K is not None:
            h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * norm_K.to(wide)
        y = h @ weight_NK.to(wide).T
        if gated:
            gate, up = y.chunk(2, dim=-1)
            y = functional.silu(gate) * up
    return (y if residual is None else y + residual.to(wide)).to(x.dtype)


def _separate(
    gate: Callable[[Tensor], Tensor],
    x: Tensor,
    weight: Tensor,
    norm: Tensor | None,
    residual: Tensor | None,
    gated: bool,
    eps: float,
) -> Tensor:
    """Compute the same by a product of torch; ``gate`` computes the gated activation of it."""
    with without_autocast(x):
        x = x if norm is None else functional.rms_norm(x, norm.shape, norm, eps)
        y = functional.linear(x, weight)
    y = gate(y) if gated else y
    return y if residual is None else residual + y


def _gate(y: Tensor) -> Tensor:
    gate, up = y.chunk(2, dim=-1)
    return functional.silu(gate) * up


def _torch(*inputs: Any) -> Tensor:
    return _separate(_gate, *inputs)


_TILES = Tunable("fused_linear.few_rows", (linear_few_rows_kernel,), few_rows_tiles, dots=True)


@replayed
def _few_rows(
    x: Tensor,
    weight: Tensor,
    norm: Tensor | None,
    residual: Tensor | None,
    gated: bool,
    eps: float,
) -> Tensor:
    width = len(weight) // 2 if gated else len(weight)
    y = torch.empty(*x.shape[:-1], width, dtype=x.dtype, device=x.device)
    key = (*few_rows_key(x, weight), gated)
    tile = _TILES.tile(key, _few_rows, x, weight, norm, residual, gated, eps)
    multiply_few_rows(tile, x, weight, y, norm=norm, residual=residual, gated=gated, eps=eps)
    return y


def _triton(
    x: Tensor,
    weight: Tensor,
    norm: Tensor | None,
    residual: Tensor | None,
    gated: bool,
    eps: float,
) -> Tensor:
    if x.numel() <= MOST_ROWS * x.shape[-1]:
        return _few_rows(x, weight, norm, residual, gated, eps)
    if gated and norm is None and residual is None and is_for_many_rows(x, weight, 2):
        return gate_many_rows(x, weight)
    return _separate(_gate_by_triton, x, weight, norm, residual, gated, eps)


def _gate_by_triton(y: Tensor) -> Tensor:
    return _gated.gated(y, None, "silu")


def _refuses(x: Tensor, weight: Tensor, norm: Tensor | None, *_: Any) -> str | None:
    if norm is not None and x.dtype == torch.float16:
        return "x times the norm's weight may overflow torch.float16 before it is normalised"
    return few_rows_refusal(x, weight)


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    rows, k, n = case.sizes["rows"], case.sizes["k"], case.sizes["n"]
    make = {"device": device, "dtype": dtype}
    norm, residual, gated = (bool(case.sizes.get(name)) for name in _PARTS)
    height = 2 * n if gated else n
    return {
        "x": random_tensor(rows, k, seed=seed, **make),
        "weight_NK": random_tensor(height, k, seed=seed + 1, scale=max(k, 1) ** -0.5, **make),
        "norm_K": random_tensor(k, seed=seed + 2, **make) if norm else None,
        "residual": random_tensor(rows, n, seed=seed + 3, **make) if residual else None,
        "gated": gated,
        "eps": 1e-5,
    }


def _cost(x: Tensor, weight_NK: Tensor, **rest: Any) -> Cost:
    n, k = weight_NK.shape
    rows, written = x.numel() // max(k, 1), n // 2 if rest["gated"] else n
    read = tensor_bytes(x, weight_NK, *(t for t in rest.values() if isinstance(t, Tensor)))
    return Cost(Work(read + rows * written * x.element_size(), 2 * rows * n * k))


def _sizes(random: Random) -> dict[str, Any]:
    sizes = {"rows": random.randint(0, 20), "k": random.randint(1, 300), "n": random.randint(1, 80)}
    return sizes | {name: random.random() < 0.5 for name in _PARTS}


def _case(rows: int, k: int, n: int, parts: str = "", *, bench: bool = False) -> Case:
    sizes = {"rows": rows, "k": k, "n": n} | dict.fromkeys(parts.split(), True)
    return Case(f"{rows}x{k}->{n} {parts}".strip(), sizes, bench=bench, forward_only=bench)


def _end(inputs: Inputs) -> Inputs:
    """Return the inputs of the last two outputs: they need all of x."""
    gate, up = inputs["weight_NK"].chunk(2)
    weight = torch.cat((gate[-2:], up[-2:]))
    return inputs | {"weight_NK": weight, "residual": inputs["residual"][:, -2:]}


OP = Operator(
    name="fused_linear",
    function=fused_linear,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(_triton, missing, _refuses, replayed=True),
        "torch": Implementation(_torch),
    },
    plain=_torch,
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    huge=(
        Huge(
            {"rows": 2, "k": 65536, "n": 16400} | dict.fromkeys(_PARTS, True), _end, torch.bfloat16
        ),
        Huge({"rows": 32896, "k": 65536, "n": 8, "gated": True}, dtype=torch.bfloat16),
    ),
    cases=(
        _case(1, 33, 7),
        _case(3, 100, 33, "norm"),
        _case(8, 96, 130, "residual"),
        _case(16, 1040, 63, "norm residual gated"),
        _case(0, 16, 5, "norm"),
        _case(40, 64, 48, "gated"),
        _case(300, 200, 72, "gated"),
        _case(70, 33, 9, "norm residual gated"),
        _case(8, 768, 1536, "norm", bench=True),
        _case(8, 768, 2048, "norm gated", bench=True),
        _case(8, 2048, 768, "residual", bench=True),
        _case(8192, 768, 2048, "gated", bench=True),
        _case(4096, 4096, 14336, "gated", bench=True),
    ),
)
