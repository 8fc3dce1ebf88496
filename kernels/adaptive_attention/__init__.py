"""Attention whose heads differ in rank and in precision, both chosen on the device.

    out = softmax(scale_h (q~ P_h) (k~ P_h)^T + causal mask) v

P_h keeps the first rank_h columns of a head, q~ and k~ are q and k rounded to the head's precision.
Both are tensors with one number per key head (and so for all query heads that share it). Kernels
read them and the host never does: they may change in a captured CUDA graph, and their values are
not checked but clamped. This is AdaAttn's adaptive kernel; groups and positions as in
``attention``.

**Rank.** q and k are given in a basis whose first columns matter most, such as after multiplication
by the V [D, D] that ``low_rank(k, D)`` gives for a head, which may be folded into the projections.
Leaving out columns then changes scores by at most d = scale max |q - q P| max |k - k P|, and each
output by at most (e^(2 d) - 1) max |v|, if the ``scale`` stays the same for all ranks. Without a
scale it follows the rank, 1 / sqrt(rank_h): the spread of scores of rank_h terms.

**Precision**, in bits, concerns the product of queries with keys: 32 means the inputs' precision;
16 means FP16, where the inputs have more; 8 means FP8 E4M3 if ``allow_fp8``, FP16 otherwise. A row
of q or k is rounded to multiples of its own unit, a power of two that brings its largest element
between 128 and 256, so that tokens do not depend on later ones. Half a step is at most 2^-4 of an
element or 2^-10 units in FP8, 2^-11 or 2^-25 in FP16. Weights and values keep the inputs'
precision, as in SageAttention (Zhang et al. 2024, arXiv 2410.02367), which has INT8 instead of FP8.
Gradients are those of the rounded q and k and pass straight through the rounding (Bengio et al.
2013, arXiv 1308.3432); columns beyond the rank get zero.

``triton`` branches to tiles as wide as the rank needs (the padded head dimension, half or a quarter
of it), forward and backward. Forward it multiplies in the requested precision; the backward pass
multiplies the same rounded numbers in the inputs' dtype. ``torch`` gives the rounded and cut
tensors to the operator attention: any of its backends, memory linear in the length, no work saved.
``manual`` is the definition, with the full matrix of weights.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm

from kernels.adaptive_attention._launch import TRITON
from kernels.attention import attention
from kernels.attention._masks import RECOMPUTED_ULPS
from kernels.attention._masks import reference as plain_attention
from kernels.attention.memory import why_not_chunked
from kernels.core.autograd import needs_gradient
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
    always,
    autocast_dtype,
    random_tensor,
    same_device,
    tensor_bytes,
    unit_stride,
)


def adaptive_attention(
    q_BHSD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    rank_G: Tensor | None = None,
    precision_G: Tensor | None = None,
    *,
    causal: bool = True,
    scale: float | None = None,
    allow_fp8: bool = False,
    impl: str | None = None,
) -> Tensor:
    """Compute attention of ``q_BHSD`` over ``k_BGTD`` and ``v_BGTD``; returns [B, H, S, D].

    ``rank_G`` and ``precision_G`` are int32 or int64, [G], on the tensors' device: columns, 1 to D,
    and bits, 8, 16 or 32; None means all of them. q, k and v get gradients. Under autocast they are
    cast as torch casts the inputs of its own attention. ``impl``: auto, triton, torch or manual.
    Raises ``Mistake`` if the arguments do not fit together, ``Unavailable`` if ``impl`` cannot run.
    """
    dtype = autocast_dtype(q_BHSD)
    if dtype is not None:
        # a cast would hide different dtypes
        alike("adaptive_attention", "q k v", q_BHSD, k_BGTD, v_BGTD)
        q_BHSD, k_BGTD, v_BGTD = q_BHSD.to(dtype), k_BGTD.to(dtype), v_BGTD.to(dtype)
    q_BHSD, k_BGTD, v_BGTD = unit_stride(q_BHSD), unit_stride(k_BGTD), unit_stride(v_BGTD)
    return run(OP, impl, q_BHSD, k_BGTD, v_BGTD, rank_G, precision_G, causal, scale, allow_fp8)


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rank: Tensor | None,
    precision: Tensor | None,
    causal: bool,
    scale: float | None,
    allow_fp8: bool,
) -> None:
    alike("adaptive_attention", "q k v", q, k, v)
    same_device("adaptive_attention", q, rank=rank, precision=precision)
    if not (q.dtype == k.dtype == v.dtype):
        raise Mistake(
            "adaptive_attention: q, k and v must have one dtype, but are "
            f"{q.dtype}, {k.dtype}, {v.dtype}"
        )
    if (
        q.dim() != 4
        or k.dim() != 4
        or k.shape != v.shape
        or (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3])
        or not k.shape[1]
        or q.shape[1] % k.shape[1]
    ):
        raise Mistake(
            "adaptive_attention: expected q [B, H, S, D] and k, v [B, G, T, D] with G dividing H, "
            f"but got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        )
    if q.shape[3] == 0:
        raise Mistake(
            "adaptive_attention: the head dimension must not be 0, but got q and k of "
            f"{tuple(q.shape)} and {tuple(k.shape)}"
        )
    if causal and q.shape[2] > k.shape[2]:
        raise Mistake(
            f"adaptive_attention: with a causal mask the number of keys must be at least the "
            f"number of queries, {q.shape[2]}, but is {k.shape[2]}"
        )
    for name, choice in (("rank", rank), ("precision", precision)):
        if choice is not None and (
            choice.dtype not in (torch.int32, torch.int64) or choice.shape != k.shape[1:2]
        ):
            raise Mistake(
                f"adaptive_attention: {name} must be an integer tensor [{k.shape[1]}], one number "
                f"per key head, but is {tuple(choice.shape)} {choice.dtype}"
            )


def cut_and_rounded(
    x: Tensor, rank: Tensor | None, precision: Tensor | None, allow_fp8: bool
) -> Tensor:
    """Return ``x`` [B, G, ..., D] with zeros beyond the rank, at each head's precision."""
    shape = (-1,) + (1,) * (x.dim() - 2)
    if precision is not None and (allow_fp8 or x.element_size() > 2):
        bits = precision.view(shape)
        chosen = _rounded(x, torch.float16) if x.element_size() > 2 else x.detach()
        chosen = torch.where(bits <= 16, chosen, x.detach())
        if allow_fp8:
            chosen = torch.where(bits <= 8, _rounded(x, torch.float8_e4m3fn), chosen)
        # The first term is zero, but carries the complete gradient.
        x = (x - x.detach()) + chosen if needs_gradient(x) else chosen
    if rank is not None:
        x = x.masked_fill(torch.arange(x.shape[-1], device=x.device) >= rank.view(shape), 0)
    return x


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to multiples in ``dtype`` of a power of two per row, exact in x's own dtype."""
    top = vector_norm(x.detach(), math.inf, -1, keepdim=True).float()
    exponent = (top.view(torch.int32) & 0xFF << 23).clamp_min(16 << 23) - (7 << 23)
    unit = exponent.view(torch.float32)
    low = (x.detach() / unit).to(dtype)
    if dtype != torch.float16:  # FP16 values multiply in FP32 as they are, and all products fit
        low = low.to(torch.float32)
    return (low * unit).to(x.dtype)


def prepared(
    q: Tensor,
    k: Tensor,
    rank: Tensor | None,
    precision: Tensor | None,
    scale: float | None,
    allow_fp8: bool,
) -> tuple[Tensor, Tensor, Tensor | float]:
    """Return the cut and rounded q and k, and their scale, [H, 1, 1] if it follows the rank.

    For a cache: the keys of a token are the same whenever they are prepared, and ``attention`` with
    prepared queries and keys equals ``adaptive_attention`` with unprepared ones.
    """
    heads, dim = q.shape[1], q.shape[3]
    groups = k.shape[1]
    factor: Tensor | float = dim**-0.5 if scale is None else scale
    if rank is not None:
        rank = rank.clamp(1, dim)
        if scale is None:
            factor = rank.to(accumulator(q.dtype)).rsqrt()
            factor = factor[:, None].expand(groups, heads // groups).reshape(heads, 1, 1)
    q_BGRSD = q.unflatten(1, (groups, heads // groups))
    if q.shape[2] == k.shape[2] == 1:  # one decoded token: the cost is in the launches
        both = torch.cat([q_BGRSD, k[:, :, None]], 2)
        both = cut_and_rounded(both, rank, precision, allow_fp8)
        return both[:, :, :-1].flatten(1, 2), both[:, :, -1], factor
    q = cut_and_rounded(q_BGRSD, rank, precision, allow_fp8).flatten(1, 2)
    return q, cut_and_rounded(k, rank, precision, allow_fp8), factor


def reference(
    q_BHSD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    rank_G: Tensor | None = None,
    precision_G: Tensor | None = None,
    causal: bool = True,
    scale: float | None = None,
    allow_fp8: bool = False,
) -> Tensor:
    """Compute the definition, with the full matrix of weights."""
    q, k, factor = prepared(q_BHSD, k_BGTD, rank_G, precision_G, scale, allow_fp8)
    return plain_attention(q, k, v_BGTD, causal, None, factor)


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rank: Tensor | None,
    precision: Tensor | None,
    causal: bool,
    scale: float | None,
    allow_fp8: bool,
) -> Tensor:
    """Cut and round, then run ordinary attention."""
    q, k, factor = prepared(q, k, rank, precision, scale, allow_fp8)
    if isinstance(factor, Tensor):
        scale = q.shape[-1] ** -0.5
        q = (q * (factor / scale)).to(q.dtype)
    if torch.compiler.is_compiling() and q.is_cuda:
        # Attention's output and its gradient have the order of q, and projections read and write
        # them by tokens. Inductor writes q in that order at no cost.
        q = q.transpose(1, 2).contiguous().transpose(1, 2)
    backend = None
    if not q.is_cuda:
        # SDPA's FP32 kernel for the CPU loses up to three times what the definition loses.
        backend = "manual" if why_not_chunked(q, k) else "chunked"
    return attention(q, k, v, causal=causal, scale=scale, backend=backend)


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    size = case.sizes
    make = {"device": device, "dtype": dtype}
    q, k, v = (
        random_tensor(size["batch"], tokens, heads, size["dim"], seed=seed + i, **make).transpose(
            1, 2
        )
        for i, (tokens, heads) in enumerate(
            [(size["length"], size["heads"])] + 2 * [(size["keys"], size["kv_heads"])]
        )
    )
    ranks, bits = size["ranks"], size["bits"]
    return {
        "q_BHSD": q,
        "k_BGTD": k,
        "v_BGTD": v,
        "rank_G": None if ranks is None else torch.tensor(ranks, device=device),
        "precision_G": None
        if bits is None
        else torch.tensor(bits, dtype=torch.int32, device=device),
        "causal": size["causal"],
        "scale": size.get("scale"),
        "allow_fp8": size["allow_fp8"],
    }


def _cost(
    q_BHSD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    rank_G: Tensor | None,
    precision_G: Tensor | None,
    causal: bool,
    scale: float | None,
    allow_fp8: bool,
) -> Cost:
    """Return the least work: scores and their two gradients have the columns of the ranks.

    As for ``attention``, the gradient has four products. A kernel that computes the scores again
    adds a fifth by its own choice.
    """
    batch, heads, length, dim = q_BHSD.shape
    groups, keys = k_BGTD.shape[1:3]
    pairs = length * (2 * keys - length + 1) // 2 if causal else length * keys
    columns = groups * dim if rank_G is None else int(rank_G.clamp(1, dim).sum())
    products = 2 * batch * (heads // groups) * pairs  # FLOPs per pair and column of a head
    queries_keys = batch * (heads // groups * length + keys) * columns * q_BHSD.element_size()
    out, values = tensor_bytes(q_BHSD), tensor_bytes(v_BGTD)
    written = tensor_bytes(q_BHSD, k_BGTD, v_BGTD)
    return Cost(
        Work(queries_keys + values + out, products * (columns + groups * dim)),
        Work(
            queries_keys + values + 2 * out + written, products * (2 * columns + 2 * groups * dim)
        ),
    )


def _case(
    name: str,
    batch: int,
    length: int,
    heads: int,
    kv_heads: int,
    dim: int,
    ranks: list[int] | None,
    bits: list[int] | None = None,
    *,
    keys: int | None = None,
    causal: bool = True,
    allow_fp8: bool = False,
    bench: bool = False,
    **more: Any,
) -> Case:
    sizes = {
        "batch": batch,
        "length": length,
        "heads": heads,
        "kv_heads": kv_heads,
        "dim": dim,
        "keys": length if keys is None else keys,
        "causal": causal,
        "ranks": ranks,
        "bits": bits,
        "allow_fp8": allow_fp8,
    }
    return Case(name, sizes | more, bench)


def _sizes(random: Random) -> dict[str, Any]:
    # From 2 tokens on: with one, which has a case, all gradients but v's are only rounding errors.
    length, kv_heads, dim = random.randint(2, 40), random.randint(1, 3), 8 * random.randint(1, 9)
    some = range(kv_heads)
    return {
        "batch": random.randint(1, 2),
        "length": length,
        "heads": kv_heads * random.randint(1, 2),
        "kv_heads": kv_heads,
        "dim": dim,
        "keys": length + random.choice((0, 0, random.randint(0, 40))),
        "causal": random.random() < 0.7,
        "ranks": random.choice((None, [random.randint(1, dim) for _ in some])),
        "bits": random.choice((None, [random.choice((8, 16, 32)) for _ in some])),
        "scale": random.choice((None, 0.1)),
        "allow_fp8": random.random() < 0.5,
    }


OP = Operator(
    name="adaptive_attention",
    function=adaptive_attention,
    reference=reference,
    check=_check,
    implementations={
        "triton": TRITON,
        "torch": Implementation(_attention, stated_ulps=RECOMPUTED_ULPS),
        "manual": Implementation(reference),
    },
    # Inductor cuts and rounds where it makes queries and keys, and plain attention is faster.
    fused_by_compiler=always,
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    huge=(
        Huge(
            _case("many", (1 << 14) + 3, 64, 16, 2, 128, [40, 128], [8, 16], allow_fp8=True).sizes
        ),
    ),
    gradients=("q_BHSD", "k_BGTD", "v_BGTD"),
    cases=(
        _case("B2 S33 H4/2 D24", 2, 33, 4, 2, 24, [5, 24], [16, 32]),
        _case("B1 S1 H1/1 D8 rank 3", 1, 1, 1, 1, 8, [3]),
        _case("B1 S70 H4/4 D64 all widths", 1, 70, 4, 4, 64, [3, 17, 33, 64]),
        _case("B1 S40 H3/3 D64 fp8", 1, 40, 3, 3, 64, [9, 40, 64], [8, 8, 16], allow_fp8=True),
        _case("B1 S20 T45 H2/1 D40 full", 1, 20, 2, 1, 40, [21], None, keys=45, causal=False),
        _case("B1 S5 T77 H4/2 D40 scale", 1, 5, 4, 2, 40, [11, 90], [16, 8], keys=77, scale=0.1),
        _case("B1 S17 H2/2 D16 fp8 unranked", 1, 17, 2, 2, 16, None, [32, 8], allow_fp8=True),
        _case("B0 S5 H2/1 D8", 0, 5, 2, 1, 8, [4]),
        _case(
            "B4 S4096 H12 D64 ranks 16 to 64",
            4,
            4096,
            12,
            12,
            64,
            [16, 16, 16, 16, 16, 16, 32, 32, 32, 32, 64, 64],
            [8, 8, 8, 16, 16, 16, 8, 8, 16, 16, 16, 16],
            allow_fp8=True,
            bench=True,
        ),
    ),
)
