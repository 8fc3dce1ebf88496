"""Scaled dot-product attention: one call, many backends.

    out = softmax(scale q k^T + mask) v

Vaswani et al. 2017 (arXiv 1706.03762), equation 1; groups of query heads that share keys and values
(GQA): Ainslie et al. 2023 (arXiv 2305.13245). Query i of S is at position T - S + i of the T keys,
or at ``kv_length`` - S + i. It sees the keys up to its position (``causal``), of these the last
``window`` including itself (without ``causal``, that many to either side), and none at or beyond
``kv_length``. A ``kv_length`` for every query gives each its own position, ``kv_length`` - 1. A
query that sees no key gives zeros in manual, chunked and triton, and is undefined elsewhere.

Backends: ``manual`` (the definition, with the full matrix of weights), ``chunked`` (online softmax
in plain torch: memory linear in the length), torch's ``sdpa_math``, ``sdpa_flash``,
``sdpa_efficient``, ``sdpa_cudnn`` and ``flex``, ``sdpa`` for torch's own choice, and from optional
packages ``flash2``, ``flash3``, ``flash4`` and ``xformers``; ``triton`` is our own, forward and
backward. ``auto`` measures the fused ones on a GPU (``kernels.core.measured``). Without a
measurement it uses the first that fits of this list: ``flash4``, ``flash3``, ``triton`` (on Hopper,
where it was measured to be faster than the rest), ``sdpa_cudnn``, ``flash2``, ``sdpa_flash``,
``sdpa_efficient``, ``triton``, ``chunked`` (for long sequences), ``manual``.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from kernels.attention import _flash, _flex, _hopper, _libraries, _sdpa
from kernels.attention._chunked import chunked
from kernels.attention._masks import RECOMPUTED_ULPS, bounds, reference, visible
from kernels.attention.memory import why_not_chunked
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
    alike,
    autocast_dtype,
    random_tensor,
    same_device,
    tensor_bytes,
    unit_stride,
)


def attention(
    q_BHSD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    kv_length: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """Compute attention of ``q_BHSD`` over ``k_BGTD`` and ``v_BGTD``; returns [B, H, S, D].

    G divides H. ``window`` is a number of keys; ``scale`` is 1 / sqrt(D) if None. ``kv_length``, an
    integer tensor on the device, [] or [B], is the number of filled keys in a static KV cache,
    including the S new ones; the host never reads it. [B, S]: how many keys each query sees, for
    queries that were gathered from a sequence. Under autocast the inputs are cast as torch casts
    those of its own attention. Raises ``Mistake`` if the arguments do not fit together and
    ``Unavailable`` for a backend that cannot run.
    """
    dtype = autocast_dtype(q_BHSD)
    if dtype is not None:
        alike("attention", "q k v", q_BHSD, k_BGTD, v_BGTD)  # a cast would hide different dtypes
        q_BHSD, k_BGTD, v_BGTD = q_BHSD.to(dtype), k_BGTD.to(dtype), v_BGTD.to(dtype)
    q_BHSD, k_BGTD, v_BGTD = unit_stride(q_BHSD), unit_stride(k_BGTD), unit_stride(v_BGTD)
    window = _narrow(window, q_BHSD, k_BGTD)
    return run(OP, backend, q_BHSD, k_BGTD, v_BGTD, causal, window, scale, kv_length)


def _narrow(window: int | None, q: Tensor, k: Tensor) -> int | None:
    """Return the window; None if it holds all keys of every query.

    Without one more backends can run, and libraries get no number beyond 32 bits.
    """
    if window is None or q.dim() != 4 or k.dim() != 4:
        return window
    return None if window >= max(q.shape[2], k.shape[2], 1) else window


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window: int | None,
    scale: float | None,
    kv_length: Tensor | None,
) -> None:
    alike("attention", "q k v", q, k, v)
    same_device("attention", q, kv_length=kv_length)
    if not (q.dtype == k.dtype == v.dtype):
        raise Mistake(
            f"attention: q, k and v must have one dtype, but are {q.dtype}, {k.dtype}, {v.dtype}"
        )
    if q.dim() != 4 or k.shape != v.shape or k.dim() != 4:
        raise Mistake(
            f"attention: expected q [B, H, S, D] and k, v [B, G, T, D], but got {_shapes(q, k, v)}"
        )
    (batch, heads, length, dim), (k_batch, groups, keys, k_dim) = q.shape, k.shape
    if batch != k_batch or dim != k_dim:
        raise Mistake(
            f"attention: q and k must agree in batch and head dimension, but got {_shapes(q, k, v)}"
        )
    if dim == 0:
        raise Mistake(f"attention: the head dimension must not be 0, but got {_shapes(q, k, v)}")
    if groups == 0 or heads % groups:
        raise Mistake(
            f"attention: the number of key heads, {groups}, must divide the number of query heads, "
            f"{heads}"
        )
    if causal and kv_length is None and length > keys:
        raise Mistake(
            f"attention: with a causal mask the number of keys must be at least the number of "
            f"queries, {length}, but is {keys}"
        )
    if window is not None and window < 1:
        raise Mistake(f"attention: window must be at least 1 key, but is {window}")
    if kv_length is not None and (
        kv_length.dtype not in (torch.int64, torch.int32)
        or kv_length.shape not in ((), (batch,), (batch, length))
    ):
        raise Mistake(
            f"attention: kv_length must be an integer tensor, [], [{batch}] or "
            f"{[batch, length]}, but is {tuple(kv_length.shape)} {kv_length.dtype}"
        )


def _shapes(q: Tensor, k: Tensor, v: Tensor) -> str:
    return f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"


def _short(q: Tensor, k: Tensor, *_: Any) -> str | None:
    return why_not_chunked(q, k)


def _prefer(able: tuple[str, ...], *inputs: Any) -> tuple[str, str] | None:
    if "triton" not in able or "flash4" in able or "flash3" in able:
        return None
    why = _hopper.ahead(*inputs)
    return None if why is None else ("triton", why)


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
    kv_length = size.get("kv_length")
    return {
        "q_BHSD": q,
        "k_BGTD": k,
        "v_BGTD": v,
        "causal": size["causal"],
        "window": size["window"],
        "scale": size.get("scale"),
        "kv_length": None if kv_length is None else torch.tensor(kv_length, device=device),
    }


def _cost(
    q_BHSD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    causal: bool,
    window: int | None,
    scale: float | None,
    kv_length: Tensor | None,
) -> Cost:
    """Return the least work: two products of each pair forward, and four for the gradient.

    The gradient needs ``dV = P^T dO``, ``dP = dO V^T``, ``dQ = dS K`` and ``dK = dS^T Q``. Kernels
    that do not store ``P`` compute ``Q K^T`` again as a fifth, which the mathematics does not need.
    """
    batch, heads, length, dim = q_BHSD.shape
    keys = k_BGTD.shape[2]
    if kv_length is None:
        # In Python: under fake tensors, numbers of torch have no values.
        reach = length + keys if window is None else window
        pairs = batch * sum(
            max(0, min(at if causal else keys - 1, at + reach - 1) - max(at - reach + 1, 0) + 1)
            for at in range(keys - length, keys)
        )
        first, last = bounds(0, length, length, keys, causal, window)
        read = batch * (last - first)
    else:
        seen = visible(length, keys, torch.device("cpu"), causal, window, _on_cpu(kv_length))
        times = batch if seen.shape[0] == 1 else 1
        pairs, read = int(seen.sum()) * times, int(seen.any(-2).sum()) * times
    out, cache = tensor_bytes(q_BHSD), tensor_bytes(k_BGTD, v_BGTD)
    seen_bytes = cache * read // max(batch * keys, 1)  # keys that no query sees are not read
    return Cost(
        Work(2 * out + seen_bytes, 4 * pairs * heads * dim),
        Work(4 * out + seen_bytes + cache, 8 * pairs * heads * dim),
    )


def _on_cpu(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.cpu()


def _case(
    name: str,
    batch: int,
    length: int,
    heads: int,
    kv_heads: int,
    dim: int,
    *,
    keys: int | None = None,
    causal: bool = True,
    window: int | None = None,
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
        "window": window,
    }
    return Case(name, sizes | more, bench)


def _sizes(random: Random) -> dict[str, Any]:
    length, kv_heads = random.randint(1, 40), random.randint(1, 3)
    return {
        "batch": random.randint(1, 2),
        "length": length,
        "heads": kv_heads * random.randint(1, 3),
        "kv_heads": kv_heads,
        "dim": 8 * random.randint(1, 5),
        "keys": length + random.choice((0, 0, random.randint(0, 40))),
        "causal": random.random() < 0.7,
        "window": random.choice((None, None, random.randint(1, 30))),
        "kv_length": random.choice((None, None, length)),
    }


def _last_queries(inputs: Inputs) -> Inputs:
    """Return the last queries with the keys that they see."""
    seen = inputs["window"] + 1
    k, v = (inputs[name][:, :, -seen:] for name in ("k_BGTD", "v_BGTD"))
    return inputs | {"q_BHSD": inputs["q_BHSD"][:, :, -2:], "k_BGTD": k, "v_BGTD": v}


OP = Operator(
    name="attention",
    function=attention,
    reference=reference,
    check=_check,
    implementations={
        "flash4": _libraries.BACKENDS["flash4"],
        "flash3": _libraries.BACKENDS["flash3"],
        "sdpa_cudnn": _sdpa.BACKENDS["sdpa_cudnn"],
        "flash2": _libraries.BACKENDS["flash2"],
        "sdpa_flash": _sdpa.BACKENDS["sdpa_flash"],
        "sdpa_efficient": _sdpa.BACKENDS["sdpa_efficient"],
        "triton": _flash.BACKENDS["triton"],
        "flex": _flex.BACKENDS["flex"],
        "xformers": _libraries.BACKENDS["xformers"],
        "chunked": Implementation(
            chunked, avoid=_short, stated_ulps=RECOMPUTED_ULPS, last_resort=True
        ),
        "manual": Implementation(reference, last_resort=True),
        "sdpa_math": _sdpa.BACKENDS["sdpa_math"],
        "sdpa": _sdpa.BACKENDS["sdpa"],
    },
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    large_reference=chunked,
    huge=(
        Huge(_case("many", (1 << 14) + 3, 64, 16, 1, 128).sizes),
        Huge(_case("long", 1, (1 << 18) + 3, 64, 64, 128, window=64).sizes, _last_queries),
    ),
    gradients=("q_BHSD", "k_BGTD", "v_BGTD"),
    prefer=_prefer,
    cases=(
        _case("B2 S63 H6/2 D24 causal", 2, 63, 6, 2, 24),
        _case("B1 S1 H1/1 D8", 1, 1, 1, 1, 8),
        _case("B1 S100 H3/1 D40 full", 1, 100, 3, 1, 40, causal=False, scale=0.3),
        _case("B1 S1000 H1/1 D16 causal", 1, 1000, 1, 1, 16),
        _case("B1 S1100 H2/1 D16 window 70", 1, 1100, 2, 1, 16, window=70),
        _case("B1 S90 H2/2 D32 window 17 both sides", 1, 90, 2, 2, 32, causal=False, window=17),
        _case("B2 S5 T77 H4/2 D64 suffix", 2, 5, 4, 2, 64, keys=77),
        _case("B3 S1 T64 H8/2 D64 decode", 3, 1, 8, 2, 64, keys=64, kv_length=[1, 33, 64]),
        _case("B1 S2 T1000 H8/2 D16 split", 1, 2, 8, 2, 16, keys=1000, kv_length=900),
        _case("B2 S7 T64 H8/2 D64 prefill", 2, 7, 8, 2, 64, keys=64, kv_length=40, window=16),
        _case(
            "B2 S3 T20 H4/2 D16 each its own",
            *(2, 3, 4, 2, 16),
            keys=20,
            kv_length=[[3, 1, 20], [7, 7, 12]],
        ),
        _case("B0 S5 H2/1 D8", 0, 5, 2, 1, 8),
        _case("B4 S4096 H32/8 D128 causal", 4, 4096, 32, 8, 128, bench=True),
        _case("B2 S16384 H32/8 D128 causal", 2, 16384, 32, 8, 128, bench=True),
        _case("B4 S4096 H12 D64 causal", 4, 4096, 12, 12, 64, bench=True),
        _case("B8 S1024 H12/4 D64 causal", 8, 1024, 12, 4, 64, bench=True),
        _case("B2 S8192 H32/8 D128 window 1024", 2, 8192, 32, 8, 128, window=1024, bench=True),
        _case(
            "B32 S1 T4096 H32/8 D128 decode",
            32,
            1,
            32,
            8,
            128,
            keys=4096,
            kv_length=4000,
            bench=True,
        ),
    ),
)
