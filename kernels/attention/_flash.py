"""Our own attention in Triton: launches and the autograd function.

The algorithm is FlashAttention-2's (Dao 2023, arXiv 2307.08691): an online softmax over blocks of
keys, recomputed from the saved normalisers in the backward pass. That pass has two kernels, one
over blocks of keys and one over blocks of queries, so that nothing is added atomically. Few rows
(as in decoding) split their keys over programs and merge the partial results (flash decoding).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernels.attention import _hopper
from kernels.attention._flash_kernels import (
    FEWEST_ROWS,
    attention_dkdv_kernel,
    attention_dq_kernel,
    attention_forward_kernel,
    launch_delta,
    launch_dkdv,
    launch_dq,
    launch_forward,
    launch_merge,
)
from kernels.attention._masks import RECOMPUTED_ULPS
from kernels.attention._order import heads_together
from kernels.core.autograd import applied, are_operators, needs_gradient, once_differentiable
from kernels.core.operator import Implementation, by_tokens, cdiv, unit_stride
from kernels.core.replay import replayed
from kernels.core.triton_helpers import (
    LARGE_BYTES,
    describable,
    dot_precision,
    has_large_memory,
    head_strides,
    missing,
    no_fp64,
    on_device,
    power_of_two,
    shared_bytes,
    sm_count,
)
from kernels.core.tuning import Key, Tile, Tunable

MANY_ROWS = 128  # from here on, the forward kernel's tiles are not those of decoding
DEEP = 3  # stages with which one program fetches enough for a multiprocessor in decoding
MAX_DIM = 256
MAX_DIM_FP32 = 128


def tile(dim: int, wide: bool, large: bool, rows: int) -> tuple[int, int, int, int]:
    """Return rows, keys, warps and stages of the forward kernel, by measurements on an H200.

    For a head dimension, FP32 (``wide``) or not, and the memory; ``rows`` may be a size class's.
    """
    if rows <= 16 and dim <= 64 and not wide:
        return 16, 64, 1, 1
    if rows <= 64:
        return max(16, power_of_two(rows)), 64 if dim <= 128 and large else 32, 4, 2
    if wide:
        return (64, 32, 4, 2) if large else (32, 32, 4, 1)
    if dim <= 64:
        return 128, 64, 4, 3
    if large:
        return (128, 128, 8, 2) if dim <= 128 else (128, 64, 8, 2)
    return (128, 64, 8, 2) if dim <= 128 else (64, 32, 4, 2)


def forward_tiles(device: int, dtype: torch.dtype, dim: int, rows: int, *_: Any) -> list[Tile]:
    """Return candidates of the forward kernel."""
    wide, large = dtype == torch.float32, shared_bytes(device) >= LARGE_BYTES
    first = m, n, warps, stages = tile(dim, wide, large, rows)
    alternatives = [
        (m, n, warps, stages + 1),
        (m, n, 4 if warps == 1 else 12 - warps, stages),
        (m, 128 if n <= 64 else 64, warps, stages),
    ]
    if rows > 64:
        alternatives += [(64, 64, 4, 3), (128, 64, 4, 2), (128, 64, 8, 3), (64, 128, 4, 2)]
    return _fitting([first, *alternatives], dim, 2, dtype, shared_bytes(device))


def _deep_first(device: int, dtype: torch.dtype, dim: int, rows: int, *_: Any) -> list[Tile]:
    """Return the same; the first is deep for few rows, by measurements on an H200."""
    tiles = forward_tiles(device, dtype, dim, rows)
    is_wide = rows <= 16 and 64 < dim <= 128 and dtype.itemsize == 2
    if is_wide and shared_bytes(device) >= LARGE_BYTES:
        return [(16, 64, 4, DEEP), *tiles]
    return tiles


def backward_tiles(device: int, dtype: torch.dtype, dim: int, *_: Any) -> list[Tile]:
    """Return candidates of the backward kernels: rows, keys, warps and stages."""
    large = shared_bytes(device) >= LARGE_BYTES
    first = m, n, warps, stages = _backward_tile(dim, dtype == torch.float32, large)
    alternatives = [(m, n, warps, stages + 1), (m, n, 12 - warps, stages), (m, n, warps, 1)]
    alternatives += [(64, 64, 4, 2), (64, 64, 8, 2), (64, 128, 8, 3)]
    return _fitting([first, *alternatives], dim, 2, dtype, shared_bytes(device))


def _candidates(
    without: Callable[..., list[Tile]], narrow: Tile, wide: Tile, *more: Tile
) -> Callable[..., list[Tile]]:
    """Return ``without`` descriptors' candidates; with descriptors, one for the head dim is first.

    ``narrow`` is the tile for head dimensions to 64, ``wide`` for more. Their programs are small:
    several share a multiprocessor. Measured on an H200.
    """

    def candidates(
        device: int, dtype: torch.dtype, dim: int, rows: int, causal: bool, window: bool,
        described: bool, *_: Any,
    ) -> list[Tile]:  # fmt: skip
        tiles = without(device, dtype, dim, rows)
        if described:
            tiles = [narrow if dim <= 64 else wide, *more, *tiles]
        return list(dict.fromkeys(tiles))

    return candidates


def _fitting(
    tiles: Sequence[Tile], dim: int, operands: int, dtype: torch.dtype, shared: int
) -> list[Tile]:
    """Return the first candidate, and the others whose blocks of keys and values fit the memory."""
    width = max(16, power_of_two(dim)) * dtype.itemsize
    first, *rest = tiles
    fits = [t for t in rest if width * (t[0] + operands * t[1] * t[3]) <= shared and t[1] >= 16]
    return list(dict.fromkeys([first, *fits]))


def _backward_tile(dim: int, wide: bool, large: bool) -> tuple[int, int, int, int]:
    if wide:
        return 32, 32, 4, 1
    if dim <= 64:
        return (128, 128, 8, 2) if large else (64, 64, 4, 2)
    if large:
        return (64, 128, 8, 2) if dim <= 128 else (32, 64, 8, 1)
    return (32, 64, 4, 1) if dim <= 128 else (32, 32, 4, 1)


_FORWARD = Tunable(
    "attention.forward",
    (attention_forward_kernel,),
    _candidates(_deep_first, (128, 64, 4, 3), (128, 64, 4, 2), (64, 64, 4, 3), (128, 128, 8, 2)),
    dots=True,
)
_DKDV = Tunable(
    "attention.dkdv",
    (attention_dkdv_kernel,),
    _candidates(backward_tiles, (128, 64, 4, 2), (32, 64, 4, 3), (64, 64, 4, 2)),
    dots=True,
)
_DQ = Tunable(  # keys first
    "attention.dq",
    (attention_dq_kernel,),
    _candidates(backward_tiles, (64, 64, 4, 3), (64, 128, 8, 3), (32, 128, 8, 3)),
    dots=True,
)


def key_of(q: Tensor, rows: int, *parts: Any) -> Key:
    """Return the key of attention's tiles; few ``rows`` are those of decoding."""
    few = power_of_two(rows) if rows <= 64 else MANY_ROWS
    return q.get_device(), q.dtype, q.shape[3], few, *parts


def _described(rows: int, *tensors: Tensor) -> bool:
    """Return True if the kernels read these by descriptors: where that was measured as faster."""
    first = tensors[0]
    if rows <= 64 or first.shape[3] > 128 or first.dtype.itemsize > 2:
        return False
    return has_large_memory(first) and describable(*tensors)


def _splits(q: Tensor, k: Tensor, rows: int, tile: Tile) -> int:
    """Return over how many programs the keys of one block of rows are split."""
    m, n, warps, stages = tile
    programs = q.shape[0] * k.shape[1] * cdiv(rows, m)
    if rows > 64:
        return 1
    multiprocessors = sm_count(q.device.index)
    if stages >= DEEP:  # one program on each, and no second turn for a few
        wanted = multiprocessors // programs
    else:
        wanted = cdiv((4 if warps == 1 else 2) * multiprocessors, programs)
    return max(1, min(wanted, 64, cdiv(k.shape[2], 2 * n)))


def _lengths(kv_length: Tensor | None) -> int:
    """Return how many lengths there are: none, one, or one for each sample (2)."""
    return 0 if kv_length is None else 1 if kv_length.numel() == 1 else 2


@replayed
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window: int | None,
    scale: float,
    kv_length: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return the output and, with ``keep``, each row's log of the sum of exponentials."""
    if _hopper.takes(q, k, v, causal, window, scale, kv_length):
        chosen = _hopper.FORWARD.tile(
            _hopper.key_of(q, causal, window),
            _forward, q, k, v, causal, window, scale, kv_length, keep,
        )  # fmt: skip
        return _hopper.forward(q, k, v, causal, window, scale, keep, chosen)
    batch, heads, length, dim = q.shape
    groups, keys = k.shape[1:3]
    rows = length * (heads // groups)
    described = _described(rows, k, v)
    m, n, warps, stages = chosen = _FORWARD.tile(
        key_of(q, rows, causal, window is not None, described),
        _forward, q, k, v, causal, window, scale, kv_length, keep,
    )  # fmt: skip
    splits = _splits(q, k, rows, chosen)
    out = by_tokens(q)
    lse = None
    if keep:
        lse = torch.empty(batch, heads, length, dtype=torch.float32, device=q.device)
    target, target_lse, strides = out, lse, (0, *out.stride()[:3])
    if splits > 1:
        shape = (splits, batch, heads, length)
        target = torch.empty(*shape, dim, dtype=torch.float32, device=q.device)
        target_lse = torch.empty(*shape, dtype=torch.float32, device=q.device)
        strides = target.stride()[:4]
    with on_device(q):
        options = constants(q, k, causal, scale, _block(dim))
        options["TOGETHER"] = heads_together(k, balanced=causal, tiles=cdiv(rows, m))
        launch_forward((batch * groups * splits * cdiv(rows, m),),
            q, k, v, target, target_lse, kv_length, length, keys, window or 0, splits,
            *head_strides(q, k, v), *strides,
            WINDOW=window is not None, LENGTHS=_lengths(kv_length), SPLIT=splits > 1,
            KEEP=keep or splits > 1, M=m, N=n, DESCRIBED=described,
            num_warps=warps, num_stages=stages, **options,
        )  # fmt: skip
        if splits > 1:
            launch_merge((batch * heads * length,),
                target, target_lse, out, lse, batch * heads * length, splits, length, heads,
                *out.stride()[:3],
                KEEP=keep, D=dim, BLOCK_D=power_of_two(dim), SPLITS=power_of_two(splits),
                num_warps=4,
            )  # fmt: skip
    return out, lse


def _block(dim: int) -> int:
    return max(16, power_of_two(dim))


def constants(q: Tensor, k: Tensor, causal: bool, scale: float, block_d: int) -> dict[str, Any]:
    """Return the constants of the kernels of every direction; ``block_d`` pads the dimension."""
    groups = k.shape[1]
    return {
        "GROUPS": groups, "TOGETHER": heads_together(k), "R": q.shape[1] // groups,
        "D": q.shape[3], "SCALE": scale, "CAUSAL": causal, "BLOCK_D": block_d,
        "PRECISION": dot_precision(),
    }  # fmt: skip


def delta_of(out: Tensor, dout: Tensor, lse: Tensor, block_d: int) -> Tensor:
    """Return each row's product of the output and its gradient, [B, H, S] as ``lse``."""
    delta = torch.empty_like(lse)
    _, heads, length, dim = out.shape
    launch_delta((cdiv(lse.numel(), 32),),
        out, dout, delta, lse.numel(), length, heads, *head_strides(out, dout),
        D=dim, ROWS=32, BLOCK_D=block_d, num_warps=4,
    )  # fmt: skip
    return delta


def _dkdv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    lse: Tensor,
    delta: Tensor,
    kv_length: Tensor | None,
    window: int | None,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    heads = options["R"]
    # The heads of a query are read together.
    described = FEWEST_ROWS % heads == 0 and _described(q.shape[2] * heads, q, dout)
    key = key_of(q, MANY_ROWS, options["CAUSAL"], window is not None, described)
    m, n, warps, stages = _DKDV.tile(
        key, _dkdv, q, k, v, dout, lse, delta, kv_length, window, options
    )
    batch, groups, keys, _ = k.shape
    launch_dkdv((batch * groups * cdiv(keys, n),),
        q, k, v, dout, lse, delta, dk, dv, kv_length, q.shape[2], keys, window or 0,
        *head_strides(q, k, v, dout, dk, dv),
        M=m, N=n, DESCRIBED=described, num_warps=warps, num_stages=stages, **options,
    )  # fmt: skip
    return dk, dv


def _dq(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    lse: Tensor,
    delta: Tensor,
    kv_length: Tensor | None,
    window: int | None,
    options: dict[str, Any],
) -> Tensor:
    dq = torch.empty_like(q)
    (batch, groups, keys, _), length = k.shape, q.shape[2]
    described = _described(length * options["R"], k, v)
    key = key_of(q, MANY_ROWS, options["CAUSAL"], window is not None, described)
    m, n, warps, stages = _DQ.tile(key, _dq, q, k, v, dout, lse, delta, kv_length, window, options)
    launch_dq((batch * groups * cdiv(length * options["R"], n),),
        q, k, v, dout, lse, delta, dq, kv_length, length, keys, window or 0,
        *head_strides(q, k, v, dout, dq),
        M=n, N=m, DESCRIBED=described, num_warps=warps, num_stages=stages, **options,
    )  # fmt: skip
    return dq


@replayed
def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    kv_length: Tensor | None,
    causal: bool,
    window: int | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    dout = unit_stride(dout)
    block_d = _block(q.shape[3])
    options = constants(q, k, causal, scale, block_d)
    options |= {"WINDOW": window is not None, "LENGTHS": _lengths(kv_length)}
    with on_device(q):
        taken = _hopper.takes(q, k, v, causal, window, scale, kv_length)
        if taken and _hopper.takes_backward(q, k, causal, window) and describable(dout):
            return _hopper.backward(dout, q, k, v, out, lse, causal, window, scale)
        delta = delta_of(out, dout, lse, block_d)
        dk, dv = _dkdv(q, k, v, dout, lse, delta, kv_length, window, options)
        dq = _dq(q, k, v, dout, lse, delta, kv_length, window, options)
    return dq, dk, dv


def attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window: int | None,
    scale: float,
    kv_length: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """Run ``_forward``; return empty normalisers for none, as torch operators return tensors."""
    out, lse = _forward(q, k, v, causal, window, scale, kv_length, keep)
    return out, _normalisers(q, keep) if lse is None else lse


def _normalisers(q: Tensor, keep: bool) -> Tensor:
    return q.new_empty(q.shape[:3] if keep else (0,), dtype=torch.float32)


# Torch operators that Dynamo puts into its graph without tracing them: whether blocks can be read
# by descriptors depends on addresses, and Dynamo cannot trace Gluon's kernels. They are defined by
# ``Library``, because ``torch.library.custom_op`` would import Dynamo at the first call: seconds.
_LIBRARY = torch.library.Library("workbench", "FRAGMENT")
for _schema, _operator, _fake in (
    (
        "attention_forward(Tensor q, Tensor k, Tensor v, bool causal, SymInt? window, float scale, "
        "Tensor? kv_length, bool keep) -> (Tensor, Tensor)",
        attention_forward,
        lambda q, *given: (by_tokens(q), _normalisers(q, given[-1])),
    ),
    (
        "attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
        "Tensor? kv_length, bool causal, SymInt? window, float scale) -> (Tensor, Tensor, Tensor)",
        _backward,
        lambda _, q, k, v, *given: tuple(map(torch.empty_like, (q, k, v))),
    ),
):
    _LIBRARY.define(_schema, tags=(torch.Tag.needs_exact_strides, torch.Tag.pt2_compliant_tag))
    _name = _schema.partition("(")[0]
    _LIBRARY.impl(_name, _operator, "CompositeExplicitAutograd")
    torch.library.register_fake(f"workbench::{_name}", _fake, lib=_LIBRARY)


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool,
        window: int | None,
        scale: float,
        kv_length: Tensor | None,
        keep: bool,
    ) -> Tensor:
        q, k, v = unit_stride(q), unit_stride(k), unit_stride(v)
        forward = torch.ops.workbench.attention_forward if are_operators() else _forward
        out, lse = forward(q, k, v, causal, window, scale, kv_length, keep)
        ctx.save_for_backward(q, k, v, out, lse, kv_length)
        ctx.mask = causal, window, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        backward = torch.ops.workbench.attention_backward if are_operators() else _backward
        return *backward(dout, *ctx.saved_tensors, *ctx.mask), None, None, None, None, None


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window: int | None,
    scale: float | None,
    kv_length: Tensor | None,
) -> Tensor:
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if window is not None and window >= max(q.shape[2], k.shape[2]):
        window = None  # it contains all keys; kernels multiply it by heads in 32 bits
    if kv_length is not None:
        kv_length = kv_length.contiguous()
    keep = needs_gradient(q, k, v)
    return applied(_Flash, q, k, v, causal, window, scale, kv_length, keep)


def refuses(q: Tensor, k: Tensor, *_: Any) -> str | None:
    """Return why the kernels do not support these queries and keys; None if they can."""
    most = MAX_DIM_FP32 if q.dtype == torch.float32 else MAX_DIM
    if q.shape[-1] > most:
        return f"supports head dimensions up to {most} in {q.dtype}, not {q.shape[-1]}"
    if not (q.numel() and k.numel()):
        return "does not support empty tensors"
    return no_fp64(q)


def _refuses(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window: int | None,
    scale: float | None,
    kv_length: Tensor | None,
) -> str | None:
    if kv_length is not None and kv_length.dim() == 2:
        return "does not support one kv_length per query"
    return refuses(q, k)


BACKENDS = {
    "triton": Implementation(_call, missing, _refuses, stated_ulps=RECOMPUTED_ULPS, replayed=True),
}
