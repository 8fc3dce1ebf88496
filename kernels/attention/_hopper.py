"""Launches of our attention kernels for Hopper, and the rules for when they are used."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kernels._hopper import HALF, WARPS, is_hopper
from kernels.attention._flash_kernels import FEWEST_ROWS
from kernels.attention._hopper_dkdv_kernels import attention_hopper_dkdv_kernel
from kernels.attention._hopper_dq_kernels import attention_hopper_dq_kernel
from kernels.attention._hopper_kernels import attention_hopper_kernel
from kernels.attention._hopper_rows_kernels import launch_add_parts, launch_pack_rows
from kernels.attention._order import heads_together
from kernels.core.autograd import needs_gradient
from kernels.core.launch import launcher
from kernels.core.operator import by_tokens, cdiv
from kernels.core.triton_helpers import describable, head_strides, on_device, sm_count
from kernels.core.tuning import Key, Tile, Tunable

DIMS = (64, 128)
NARROW = 256  # windows up to here waste less in small blocks of keys
BLOCK, STAGES = 64, 3  # backward kernels: rows or keys per block, buffered blocks
ROWS = 32  # rows of a program that packs, or keys of one that adds
# Cost of a part of the gradients of a tile's keys, and of adding parts at all, in the time of one
# block of rows. With these numbers the model finds the split that was fastest on an H200.
PART, ADDING = 0.09, 4
SHORT = 2048  # up to so many queries, training with a head dimension of 64 is faster with these
LEAST_FLOPS = 8e9  # per forward pass; too few smaller calls were measured
# Fewest and most tokens for which these are faster than cuDNN, by head dimension and training.
AHEAD: dict[tuple[int, bool], tuple[int, int | None]] = {
    (64, False): (4096, None),
    (64, True): (512, SHORT),
    (128, False): (1024, None),
    (128, True): (512, 8192),
}
launch_forward = launcher(attention_hopper_kernel)
launch_dkdv = launcher(attention_hopper_dkdv_kernel)
launch_dq = launcher(attention_hopper_dq_kernel)


def tiles(
    device: int, dtype: torch.dtype, dim: int, causal: bool, narrow: bool, *_: Any
) -> list[Tile]:
    """Return candidates: keys per block and buffered blocks, by measurements on an H200."""
    wide = [(128, 3), (128, 2)] if dim <= 64 else [(128, 2)]
    return [(64, 4), *wide] if narrow else [*wide, (64, 4)]


FORWARD = Tunable("attention.hopper", (attention_hopper_kernel,), tiles)


def key_of(q: Tensor, causal: bool, window: int | None) -> Key:
    """Return the key of the tile."""
    return q.get_device(), q.dtype, q.shape[3], causal, window is not None and window <= NARROW


def takes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window: int | None,
    scale: float,
    kv_length: Tensor | None,
) -> bool:
    """Return True if the kernel can compute this and is not slower than the one for every GPU."""
    if (window is not None and not causal) or kv_length is not None:
        return False
    if q.dtype.itemsize != 2 or scale <= 0:
        return False
    length, dim, keys = q.shape[2], q.shape[3], k.shape[2]
    return (
        dim in DIMS
        and length * _packed(q, k) >= 2 * HALF
        and (keys >= length or not causal)
        and is_hopper(q.get_device())
        and describable(q, k, v)
    )


def takes_backward(q: Tensor, k: Tensor, causal: bool, window: int | None) -> bool:
    """Return True if the same holds for the backward pass; assumes that ``takes`` is True.

    The kernels for every GPU are as fast with a head dimension of 64 and long sequences, if they
    have descriptors and enough programs, unless there is a window and each head has its own keys.
    """
    heads = q.shape[1] // k.shape[1]
    if q.shape[3] == 128 or FEWEST_ROWS % heads != 0 or (window is not None and heads == 1):
        return True
    if window is None and q.shape[2] <= SHORT:
        return True
    return _split(q, k, causal, window) > 1


def ahead(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window: int | None,
    scale: float | None,
    kv_length: Tensor | None,
) -> str | None:
    """Return why these kernels come before SDPA's, whose fastest is cuDNN's on Hopper; else None.

    They do where both passes together, or without gradients the forward pass, took less time on an
    H200 and on an H100. Small calls wait for the host, which has less to do for cuDNN's backward
    pass.
    """
    if torch.compiler.is_compiling() or not causal or window is not None:
        return None
    batch, heads, length, dim = q.shape
    if length != k.shape[2] or 2 * batch * heads * length * length * dim < LEAST_FLOPS:
        return None
    trained = needs_gradient(q, k, v)
    least, most = AHEAD.get((dim, trained), (length + 1, None))
    if length < least or (most is not None and length > most):
        return None
    if trained and dim == 64 and heads == k.shape[1]:
        return None  # cuDNN is as fast
    if not takes(q, k, v, causal, window, 1.0 if scale is None else scale, kv_length):
        return None
    tokens = f"{least} tokens and more" if most is None else f"{least} to {most} tokens"
    way = "with" if trained else "without"
    return f"faster than SDPA's kernels at head dimension {dim}, {tokens}, {way} gradients"


def _packed(q: Tensor, k: Tensor, split: int = 1) -> int:
    """Return how many heads of a program's set are packed into its rows; they must divide HALF."""
    return math.gcd(q.shape[1] // k.shape[1] // split, HALF)


def _split(q: Tensor, k: Tensor, causal: bool, window: int | None) -> int:
    """Return into how many sets to split the heads that share a key head: the fastest by a model.

    Multiprocessors take tiles in turns, as ``tile_of_turn`` says. Under a causal mask all rows see
    the first keys and hardly any see the last, but with a window all keys are seen by equally many.
    Parts must be added.
    """
    batch, key_heads, keys, _ = k.shape
    heads = q.shape[1] // key_heads
    if q.shape[2] < 2 * HALF:
        return 1  # rows of several heads make a tile
    rows = q.shape[2] if window is None else min(q.shape[2], 2 * HALF + window)
    blocks = cdiv(rows * heads, BLOCK)
    at_once = sm_count(q.device.index)

    def time(split: int) -> float:
        tiles = split * batch * key_heads * cdiv(keys, 2 * HALF)
        turns = cdiv(tiles, at_once)
        longest = float(turns)
        if (
            causal and window is None
        ):  # turns of the first multiprocessor; the last of an even number gives it nothing
            pairs = (turns - 1) // 2
            longest = 1 + 2 * pairs - 2 * pairs * (pairs + 1) * at_once / tiles
        return longest * blocks / split + (PART * tiles + ADDING if split > 1 else 0)

    return min((n for n in range(1, heads + 1) if heads % n == 0), key=time)


def forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None, scale: float, keep: bool,
    tile: Tile,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return the output and, with ``keep``, each row's log of the sum of exponentials."""
    batch, heads, length, dim = q.shape
    keys, packed = k.shape[2], _packed(q, k)
    n, stages = tile
    out = by_tokens(q)
    lse = None
    if keep:
        lse = torch.empty(batch, heads, length, dtype=torch.float32, device=q.device)
    programs = batch * (heads // packed) * cdiv(length * packed, 2 * HALF)
    with on_device(q):
        launch_forward((min(programs, sm_count(q.device.index)),),
            q, k, v, out, lse, batch, length, keys, window or 0, *head_strides(q, k, v, out),
            **_constants(q, k, causal, window, scale),
            KEEP=keep, N=n, STAGES=stages, TURNS=2 if dim <= 64 else 1, num_warps=WARPS,
        )  # fmt: skip
    return out, lse


def backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool,
    window: int | None, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return gradients of queries, keys and values, on the current GPU."""
    batch, heads, length, dim = q.shape
    key_heads, keys = k.shape[1:3]
    split = _split(q, k, causal, window)
    packed_heads = _packed(q, k, split)
    packed, delta = pack(out, dout, lse, heads // packed_heads)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    constants = _constants(q, k, causal, window, scale, split)
    parts = dk, dv
    if split > 1:
        both = lse.new_empty(2, batch, key_heads * split, keys, dim)
        parts = both[0], both[1]
    programs = batch * key_heads * split * cdiv(keys, 2 * HALF)
    launch_dkdv((min(programs, sm_count(q.device.index)),),
        q, k, v, dout, packed, delta, *parts, batch, length, keys, window or 0,
        packed.stride(0), *head_strides(q, k, v, dout, *parts), SPLIT=split, **constants,
        M=BLOCK, STAGES=STAGES, num_warps=WARPS,
    )  # fmt: skip
    if split > 1:
        add_parts(parts[0], dk, dv)
    programs = batch * (heads // packed_heads) * cdiv(length * packed_heads, 2 * HALF)
    constants["SHARE"] *= split
    launch_dq((min(programs, sm_count(q.device.index)),),
        q, k, v, dout, packed, delta, dq, batch, length, keys, window or 0,
        packed.stride(0), *head_strides(q, k, v, dout, dq), **constants,
        N=BLOCK, STAGES=STAGES, num_warps=WARPS,
    )  # fmt: skip
    return dq, dk, dv


def pack(out: Tensor, dout: Tensor, lse: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Return normalisers and row sums of ``out dout``, each [B G, rows], 16-byte aligned."""
    batch, heads, length, dim = out.shape
    rows = length * (heads // groups)
    packed, delta = (lse.new_empty(batch * groups, 4 * cdiv(rows, 4)) for _ in range(2))
    launch_pack_rows((cdiv(rows, ROWS) * batch * groups,),
        out, dout, lse, packed, delta, length, packed.stride(0), *head_strides(out, dout),
        GROUPS=groups, R=heads // groups, D=dim, ROWS=ROWS, num_warps=4,
    )  # fmt: skip
    return packed, delta


def add_parts(parts: Tensor, dk: Tensor, dv: Tensor) -> None:
    """Sum the parts of the gradients of keys; those of values are behind them."""
    batch, key_heads, keys, dim = dk.shape
    launch_add_parts((cdiv(keys, ROWS) * batch * key_heads, 2),
        parts, dk, dv, batch, keys, *head_strides(dk, dv),
        KEY_HEADS=key_heads, SPLIT=parts.shape[1] // key_heads, D=dim, N=ROWS, num_warps=4,
    )  # fmt: skip


def _constants(
    q: Tensor, k: Tensor, causal: bool, window: int | None, scale: float, split: int = 1
) -> dict[str, Any]:
    packed = _packed(q, k, split)
    groups = q.shape[1] // packed
    return {
        "GROUPS": groups, "TOGETHER": heads_together(k), "SHARE": groups // k.shape[1] // split,
        "R": packed, "D": q.shape[3], "SCALE": scale, "CAUSAL": causal,
        "WINDOW": window is not None, "HALF": HALF,
    }  # fmt: skip
