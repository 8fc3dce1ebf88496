"""Queries, keys and values of tokens from one product, with queries and keys rotated in it.

    q, k, v = the heads of x W^T,    q' = R(norm(q)),    k' = R(norm(k))

R rotates by the token's position (``rope``); the norm (``qk_norm``) is optional. On Hopper one
kernel computes all of it for many rows: heads are rotated before they are written. Elsewhere the
product is that of torch, and another kernel reads its heads again.

There are no gradients: those of the norms need the product, which is not stored.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kernels import _qk
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
    alike,
    random_tensor,
    tensor_bytes,
    without_autocast,
)
from kernels.core.triton_helpers import missing, no_fp64
from kernels.linear._many_rows import HEAD_DIMS, is_for_many_rows, turn_many_rows
from kernels.qk_norm_rope import OP as QK_NORM_ROPE
from kernels.rope import OP as ROPE
from kernels.rope import table


def qkv_rope(
    x_BSE: Tensor,
    weight_ZE: Tensor,
    cos_SR: Tensor,
    sin_SR: Tensor,
    n_heads: int,
    n_kv_heads: int,
    q_weight_D: Tensor | None = None,
    k_weight_D: Tensor | None = None,
    eps: float = 0.0,
    offset: int = 0,
    *,
    impl: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Project tokens to heads, and rotate queries and keys by their positions.

    ``weight_ZE`` has the rows of H = ``n_heads`` query heads, then those of G = ``n_kv_heads`` key
    heads and of as many value heads, Z = (H + 2 G) D. ``cos_SR`` and ``sin_SR``: the table of
    ``rope``, R = D/2, for halves. With ``q_weight_D`` and ``k_weight_D`` queries and keys are
    normalised first, as in ``qk_norm`` with ``eps``. The first token is at position ``offset``.

    Returns queries [B, H, S, D], keys and values [B, G, S, D], in memory by tokens. ``impl``: auto,
    torch or triton. Raises ``Mistake`` if the arguments do not fit together or need a gradient, and
    ``Unavailable`` for an implementation that cannot run.
    """
    return run(
        OP, impl, x_BSE, weight_ZE, cos_SR, sin_SR, n_heads, n_kv_heads, q_weight_D, k_weight_D,
        eps, offset,
    )  # fmt: skip


def _check(
    x: Tensor,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    n_heads: int,
    n_kv_heads: int,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    offset: int,
) -> None:
    op = "qkv_rope"
    alike(op, "x weight q_weight k_weight", x, weight, q_weight, k_weight)
    if x.dim() != 3 or weight.dim() != 2 or x.shape[2] != weight.shape[1]:
        raise Mistake(
            f"{op}: expected x [B, S, E] and a weight [(H + 2 G) D, E], but got {tuple(x.shape)} "
            f"and {tuple(weight.shape)}"
        )
    count = n_heads + 2 * n_kv_heads
    if n_heads < 1 or n_kv_heads < 1 or len(weight) % (2 * count):
        raise Mistake(
            f"{op}: n_heads and n_kv_heads must be at least 1, and heads must have an even width, "
            f"but they are {n_heads} and {n_kv_heads} with a weight {tuple(weight.shape)}"
        )
    if weight.dtype != x.dtype:
        raise Mistake(f"{op}: the weight must have x's dtype, {x.dtype}, but has {weight.dtype}")
    if (q_weight is None) != (k_weight is None):
        raise Mistake(f"{op}: q_weight and k_weight must both be tensors or both be None")
    heads = x.new_empty(()).expand(len(x), 1, x.shape[1], len(weight) // count)
    _qk.validate_table(op, heads, cos, sin, offset)
    if q_weight is not None and k_weight is not None:
        _qk.validate_weights(op, heads, q_weight, k_weight)
    if cos.shape[1] != heads.shape[3] // 2:
        raise Mistake(
            f"{op}: cos and sin must be [positions, {heads.shape[3] // 2}], but are "
            f"{tuple(cos.shape)}"
        )
    if torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (x, weight, q_weight, k_weight)
    ):
        raise Mistake(f"{op}: it computes no gradients; call it under torch.no_grad()")


def reference(
    x_BSE: Tensor,
    weight_ZE: Tensor,
    cos_SR: Tensor,
    sin_SR: Tensor,
    n_heads: int,
    n_kv_heads: int,
    q_weight_D: Tensor | None = None,
    k_weight_D: Tensor | None = None,
    eps: float = 0.0,
    offset: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the definition, without rounding in between."""
    wide = accumulator(x_BSE.dtype)
    with without_autocast(x_BSE):
        z = x_BSE.to(wide) @ weight_ZE.to(wide).T
    q, k, v = _heads(z, n_heads, n_kv_heads)
    if q_weight_D is not None and k_weight_D is not None:
        weights = q_weight_D, k_weight_D
        q, k = QK_NORM_ROPE.reference(q, k, *weights, cos_SR, sin_SR, eps, offset=offset)
    else:
        q, k = ROPE.reference(q, k, cos_SR, sin_SR, offset=offset)
    return q.to(x_BSE.dtype), k.to(x_BSE.dtype), v.to(x_BSE.dtype)


def _heads(z_BSZ: Tensor, n_heads: int, n_kv_heads: int) -> tuple[Tensor, ...]:
    """Return views of queries [B, H, S, D], keys and values [B, G, S, D]."""
    count = n_heads + 2 * n_kv_heads
    heads_BXSD = z_BSZ.unflatten(-1, (count, z_BSZ.shape[-1] // count)).transpose(1, 2)
    return heads_BXSD.split((n_heads, n_kv_heads, n_kv_heads), dim=1)


def _separate(
    impl: str,
    x: Tensor,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    n_heads: int,
    n_kv_heads: int,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    offset: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the same by a product of torch, and by rotations of that implementation."""
    with without_autocast(x):
        q, k, v = _heads(functional.linear(x, weight), n_heads, n_kv_heads)
    if q_weight is not None and k_weight is not None:
        turn = QK_NORM_ROPE.implementations[impl].call
        return *turn(q, k, q_weight, k_weight, cos, sin, eps, False, offset), v
    return *ROPE.implementations[impl].call(q, k, cos, sin, False, offset), v


def _torch(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _separate("torch", *inputs)


def _triton(
    x: Tensor,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    n_heads: int,
    n_kv_heads: int,
    *norms_and_offset: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    dim = len(weight) // (n_heads + 2 * n_kv_heads)
    if dim not in HEAD_DIMS or not is_for_many_rows(x, weight, 1):
        return _separate("triton", x, weight, cos, sin, n_heads, n_kv_heads, *norms_and_offset)
    q_weight, k_weight, eps, offset = norms_and_offset
    heads_BSZ = turn_many_rows(
        x, weight, cos, sin, q_weight, k_weight, n_heads, n_kv_heads, eps, offset
    )
    q, k, v = _heads(heads_BSZ, n_heads, n_kv_heads)
    return q, k, v


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    size = case.sizes
    heads, groups, dim, width = (size[name] for name in ("heads", "kv_heads", "dim", "width"))
    make = {"device": device, "dtype": dtype}
    offset = size.get("offset", 0)
    cos, sin = table(offset + size["length"] + 1, dim, device)
    gains = [
        1 + random_tensor(dim, seed=seed + number, scale=0.1, **make) if size.get("norm") else None
        for number in (2, 3)
    ]
    outputs = (heads + 2 * groups) * dim
    return {
        "x_BSE": random_tensor(size["batch"], size["length"], width, seed=seed, **make),
        "weight_ZE": random_tensor(
            outputs, width, seed=seed + 1, scale=max(width, 1) ** -0.5, **make
        ),
        "cos_SR": cos,
        "sin_SR": sin,
        "n_heads": heads,
        "n_kv_heads": groups,
        "q_weight_D": gains[0],
        "k_weight_D": gains[1],
        "eps": 1e-5,
        "offset": offset,
    }


def _cost(x_BSE: Tensor, weight_ZE: Tensor, cos_SR: Tensor, **rest: Any) -> Cost:
    rows, outputs = x_BSE.numel() // max(x_BSE.shape[2], 1), len(weight_ZE)
    angles = 2 * x_BSE.shape[1] * cos_SR.shape[1] * cos_SR.element_size()
    read = tensor_bytes(x_BSE, weight_ZE, rest["q_weight_D"], rest["k_weight_D"]) + angles
    flops = 2 * rows * weight_ZE.numel() + 3 * rows * outputs
    return Cost(Work(read + rows * outputs * x_BSE.element_size(), flops))


def _sizes(random: Random) -> dict[str, Any]:
    return {
        "batch": random.randint(0, 4),
        "length": random.randint(1, 20),
        "heads": random.randint(1, 5),
        "kv_heads": random.randint(1, 3),
        "dim": 2 * random.randint(1, 40),
        "width": random.randint(1, 100),
        "offset": random.randint(0, 5),
        "norm": random.random() < 0.5,
    }


def _case(
    batch: int, length: int, heads: int, kv_heads: int, dim: int, width: int, *, norm: bool = False,
    bench: bool = False,
) -> Case:  # fmt: skip
    sizes = {
        "batch": batch, "length": length, "heads": heads, "kv_heads": kv_heads, "dim": dim,
        "width": width, "norm": norm,
    }  # fmt: skip
    name = f"B{batch} S{length} E{width} H{heads}/{kv_heads} D{dim}{' norm' * norm}"
    return Case(name, sizes, bench=bench, forward_only=bench)


OP = Operator(
    name="qkv_rope",
    function=qkv_rope,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(_triton, missing, no_fp64),
        "torch": Implementation(_torch),
    },
    plain=_torch,
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    huge=(Huge(_case(16, 2052, 1, 1, 64, 65536).sizes, dtype=torch.bfloat16),),
    cases=(
        _case(2, 23, 6, 3, 20, 40),
        _case(3, 50, 3, 1, 64, 72, norm=True),
        _case(2, 70, 5, 3, 32, 136),
        _case(1, 1, 1, 1, 2, 8, norm=True),
        _case(0, 5, 2, 1, 8, 16),
        _case(8, 1024, 12, 4, 64, 768, bench=True),
        _case(8, 1024, 12, 12, 64, 768, norm=True, bench=True),
        _case(4, 1024, 32, 8, 128, 4096, bench=True),
    ),
)
