"""Heads of one new token for attention with a cache, in one launch.

    q, k, v = heads,    q' = R(norm(q)) M,    cache[position] = R(norm(k)) M and v

R rotates by the token's position (``rope``). The norm (``qk_norm``) and a matrix M for each head
are optional. In a decoding step all of these are small, and a kernel for each of them takes longer
to start than to run.

There are no gradients: decoding has none.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

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
    cdiv,
    random_tensor,
    same_device,
    tensor_bytes,
    unit_stride,
    without_autocast,
)
from kernels.core.replay import replayed
from kernels.core.triton_helpers import (
    MAX_GRID,
    dot_precision,
    missing,
    no_fp64,
    on_device,
    power_of_two,
)
from kernels.rms_norm import reference as normalised
from kernels.rope import reference as rotated
from kernels.rope import table
from kernels.rope_to_cache._kernels import launch

WIDEST = 128  # width of a head with a matrix: a program multiplies half of it at once
SAMPLES = 16  # most samples of a program


def rope_to_cache(
    heads_BXD: Tensor,
    cache_BYTD: Tensor,
    cos_SR: Tensor,
    sin_SR: Tensor,
    position: Tensor,
    q_weight_D: Tensor | None = None,
    k_weight_D: Tensor | None = None,
    matrix_ZDD: Tensor | None = None,
    eps: float = 0.0,
    *,
    impl: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Prepare the heads of the token at ``position``, and write its keys and values.

    ``heads_BXD`` has H query heads, then G key heads and G value heads. ``cache_BYTD`` has Y = 2 G
    heads, keys first, for T positions; its row ``position`` (int64, [], on the device, less than T)
    is overwritten; at T or later, Triton writes nothing and returns NaN. ``cos_SR`` and ``sin_SR``:
    the table of ``rope``, R = D/2, for halves. With ``q_weight_D`` and ``k_weight_D`` queries and
    keys are normalised first, as in ``qk_norm`` with ``eps``. ``matrix_ZDD``: each head of Z = H +
    G is multiplied by its matrix, from the right.

    Returns the queries [B, H, D], and ``position + 1``, the number of positions that they see.
    ``impl``: auto, torch or triton. Raises ``Mistake`` if the arguments do not fit together or need
    a gradient, and ``Unavailable`` for an implementation that cannot run.
    """
    return run(
        OP, impl, heads_BXD, cache_BYTD, cos_SR, sin_SR, position, q_weight_D, k_weight_D,
        matrix_ZDD, eps,
    )  # fmt: skip


def _check(
    heads: Tensor,
    cache: Tensor,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    matrix: Tensor | None,
    eps: float,
) -> None:
    op = "rope_to_cache"
    alike(op, "heads cache cos sin q_weight k_weight matrix", heads, cache, cos, sin, q_weight,
          k_weight, matrix)  # fmt: skip
    same_device(op, heads, position=position)
    if heads.dim() != 3 or cache.dim() != 4 or cache.shape[1] % 2 or heads.shape[2] % 2:
        raise Mistake(
            f"{op}: expected heads [B, H + 2 G, D] and a cache [B, 2 G, T, D] with an even D, but "
            f"got {tuple(heads.shape)} and {tuple(cache.shape)}"
        )
    (batch, count, dim), cached = heads.shape, cache.shape[1]
    if (batch, dim) != (cache.shape[0], cache.shape[3]) or count < cached:
        raise Mistake(
            f"{op}: heads {tuple(heads.shape)} need a cache [{batch}, 2 G, T, {dim}] with 2 G at "
            f"most {count}, but it is {tuple(cache.shape)}"
        )
    if cache.dtype != heads.dtype:
        raise Mistake(
            f"{op}: the cache must have the dtype of the heads, {heads.dtype}, but has "
            f"{cache.dtype}"
        )
    if cos.shape != sin.shape or cos.dim() != 2 or cos.shape[1] != dim // 2:
        raise Mistake(
            f"{op}: cos and sin must be [positions, {dim // 2}], but are {tuple(cos.shape)} and "
            f"{tuple(sin.shape)}"
        )
    if position.shape != () or position.dtype != torch.int64:
        raise Mistake(
            f"{op}: position must be an int64 tensor with shape (), but is {position.dtype} "
            f"{tuple(position.shape)}"
        )
    shapes = [None if weight is None else tuple(weight.shape) for weight in (q_weight, k_weight)]
    if shapes not in ([None, None], [(dim,), (dim,)]):
        raise Mistake(
            f"{op}: q_weight and k_weight must both be [{dim}] or None, but are {shapes[0]} and "
            f"{shapes[1]}"
        )
    turned = count - cached // 2
    if matrix is not None and (matrix.shape != (turned, dim, dim) or matrix.dtype != heads.dtype):
        raise Mistake(
            f"{op}: matrix must be {heads.dtype} {(turned, dim, dim)}, but is {matrix.dtype} "
            f"{tuple(matrix.shape)}"
        )


def reference(
    heads_BXD: Tensor,
    cache_BYTD: Tensor,
    cos_SR: Tensor,
    sin_SR: Tensor,
    position: Tensor,
    q_weight_D: Tensor | None = None,
    k_weight_D: Tensor | None = None,
    matrix_ZDD: Tensor | None = None,
    eps: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Compute the definition; matrices are multiplied in the dtype of the heads."""
    groups = cache_BYTD.shape[1] // 2
    n_queries = heads_BXD.shape[1] - 2 * groups
    q, k, v = heads_BXD[:, :, None].split((n_queries, groups, groups), dim=1)
    if q_weight_D is not None and k_weight_D is not None:
        wide = accumulator(heads_BXD.dtype)  # without rounding in between, as in ``qk_norm_rope``
        q, k = normalised(q.to(wide), q_weight_D, eps), normalised(k.to(wide), k_weight_D, eps)
    q, k = (x.to(heads_BXD.dtype) for x in rotated(q, k, cos_SR, sin_SR, False, position))
    if matrix_ZDD is not None:
        with without_autocast(heads_BXD):
            both_ZBD = torch.bmm(torch.cat((q, k), dim=1)[:, :, 0].transpose(0, 1), matrix_ZDD)
        q, k = both_ZBD.transpose(0, 1)[:, :, None].split((n_queries, groups), dim=1)
    cache_BYTD.index_copy_(2, position.reshape(1), torch.cat((k, v), dim=1))
    return q[:, :, 0], position + 1


@replayed
def _triton(
    heads: Tensor,
    cache: Tensor,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    matrix: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    (batch, count, dim), (cached, capacity) = heads.shape, cache.shape[1:3]
    q = torch.empty(batch, count - cached, dim, dtype=heads.dtype, device=heads.device)
    length = torch.empty((), dtype=position.dtype, device=position.device)
    heads, cos, sin = unit_stride(heads), cos.contiguous(), sin.contiguous()
    # A matrix is multiplied with 16 rows or more.
    samples = SAMPLES if matrix is not None else min(SAMPLES, power_of_two(batch))
    with on_device(heads):
        launch(
            (count, cdiv(batch, samples)),
            heads,
            cache,
            cos,
            sin,
            position,
            q_weight if q_weight is None else q_weight.contiguous(),
            k_weight if k_weight is None else k_weight.contiguous(),
            matrix if matrix is None else matrix.contiguous(),
            q,
            length,
            batch,
            min(len(cos), capacity),  # without a row in the cache, queries are NaN
            capacity,
            cos.stride(0),
            *heads.stride()[:2],
            *cache.stride()[:3],
            Q_HEADS=count - cached,
            KV_HEADS=cached // 2,
            HALF=dim // 2,
            NORM=q_weight is not None,
            EPS=eps,
            MATRIX=matrix is not None,
            PRECISION=dot_precision(),
            BLOCK_B=samples,
            BLOCK_D=max(power_of_two(dim // 2), 16 if matrix is not None else 1),
            num_warps=4 if matrix is not None else 1,
        )
    return q, length


def _refuses(
    heads: Tensor,
    cache: Tensor,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    matrix: Tensor | None,
    eps: float,
) -> str | None:
    if not heads.numel() or not cache.numel():
        return "does not support empty tensors"
    if cache.stride()[-1] != 1:
        return "needs a cache whose last dimension is contiguous"
    if len(heads) > SAMPLES * MAX_GRID:
        return f"supports up to {SAMPLES * MAX_GRID} samples, not {len(heads)}"
    if matrix is not None and heads.shape[2] > WIDEST:
        return f"supports matrices of heads of up to {WIDEST}, not {heads.shape[2]}"
    return no_fp64(heads)


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    size = case.sizes
    batch, heads, groups, dim, capacity = (
        size[name] for name in ("batch", "heads", "kv_heads", "dim", "capacity")
    )
    make = {"device": device, "dtype": dtype}
    cos, sin = table(size["position"] + 2, dim, device)
    weights = [
        1 + random_tensor(dim, seed=seed + number, scale=0.1, **make) if size.get("norm") else None
        for number in (2, 3)
    ]
    scale = dim**-0.5
    return {
        "heads_BXD": random_tensor(batch, heads + 2 * groups, dim, seed=seed, **make),
        "cache_BYTD": random_tensor(batch, 2 * groups, capacity, dim, seed=seed + 1, **make),
        "cos_SR": cos,
        "sin_SR": sin,
        "position": torch.tensor(size["position"], device=device),
        "q_weight_D": weights[0],
        "k_weight_D": weights[1],
        "matrix_ZDD": random_tensor(heads + groups, dim, dim, seed=seed + 4, scale=scale, **make)
        if size.get("matrix")
        else None,
        "eps": 1e-5,
    }


def _cost(heads_BXD: Tensor, cache_BYTD: Tensor, matrix_ZDD: Tensor | None, **rest: Any) -> Cost:
    batch, _, dim = heads_BXD.shape
    weights = tensor_bytes(rest["q_weight_D"], rest["k_weight_D"], matrix_ZDD)
    angles = dim * rest["cos_SR"].element_size()  # cosines and sines of one position
    flops = 3 * heads_BXD.numel()
    if matrix_ZDD is not None:
        flops += 2 * batch * matrix_ZDD.numel()
    return Cost(Work(2 * tensor_bytes(heads_BXD) + weights + angles, flops))


def _sizes(random: Random) -> dict[str, Any]:
    capacity = random.randint(1, 20)
    return {
        "batch": random.randint(0, 20),
        "heads": random.randint(1, 5),
        "kv_heads": random.randint(1, 3),
        "dim": 2 * random.randint(1, 40),
        "capacity": capacity,
        "position": random.randrange(capacity),
        "norm": random.random() < 0.5,
        "matrix": random.random() < 0.5,
    }


def _case(
    batch: int, heads: int, kv_heads: int, dim: int, capacity: int, parts: str = "", *,
    bench: bool = False,
) -> Case:  # fmt: skip
    sizes = {
        "batch": batch, "heads": heads, "kv_heads": kv_heads, "dim": dim, "capacity": capacity,
        "position": capacity // 2,
    } | dict.fromkeys(parts.split(), True)  # fmt: skip
    name = f"B{batch} H{heads}/{kv_heads} D{dim} T{capacity} {parts}".strip()
    return Case(name, sizes, bench=bench, forward_only=bench)


OP = Operator(
    name="rope_to_cache",
    function=rope_to_cache,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(_triton, missing, _refuses, replayed=True),
        "torch": Implementation(reference),
    },
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    written=lambda *inputs: ("cache_BYTD",),
    huge=(Huge({**_case(4099, 2, 2, 64, 2048).sizes, "position": 5}),),
    cases=(
        _case(2, 6, 3, 20, 7),
        _case(1, 1, 1, 2, 1),
        _case(3, 5, 1, 100, 9, "norm"),
        _case(17, 4, 4, 48, 5, "norm matrix"),
        _case(5, 2, 1, 24, 6, "matrix"),
        _case(0, 2, 1, 8, 4),
        _case(8, 16, 4, 64, 2048, bench=True),
        _case(8, 16, 16, 64, 2048, "norm matrix", bench=True),
    ),
)
