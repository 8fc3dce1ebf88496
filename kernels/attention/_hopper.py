"""Which passes of our own attention take the kernels for Hopper, and their launches."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from kernels import hardware
from kernels._launch import launcher
from kernels._operator import by_tokens, cdiv
from kernels._triton import GLUON, describable, head_strides, on_device, sm_count
from kernels._tuning import Key, Tile, Tunable
from kernels.attention._hopper_backward_kernels import (
    attention_hopper_dkdv_kernel,
    attention_hopper_dq_kernel,
    launch_pack_rows,
)
from kernels.attention._hopper_kernels import HALF, WARPS, attention_hopper_kernel

DIMS = (64, 128)
BACKWARD_DIM = 128  # with 64 the kernels for every GPU are as fast
BLOCK, STAGES = 64, 3  # of the backward kernels: rows or keys of a block, how many blocks are held
ROWS = 32  # of a program that packs
launch_forward = launcher(attention_hopper_kernel)
launch_dkdv = launcher(attention_hopper_dkdv_kernel)
launch_dq = launcher(attention_hopper_dq_kernel)


def tiles(device: int, dtype: torch.dtype, dim: int, *_: Any) -> list[Tile]:
    """Candidates: keys of a block, and how many blocks are held, by measurements on an H200."""
    return [(128, 2), (64, 4), *([(128, 3)] if dim <= 64 else [])]


FORWARD = Tunable("attention.hopper", (attention_hopper_kernel,), tiles)


def key_of(q: Tensor, causal: bool) -> Key:
    """What the tile depends on."""
    return q.get_device(), q.dtype, q.shape[3], causal


def takes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window: int | None,
    scale: float,
    kv_length: Tensor | None,
) -> bool:
    """Whether the kernel can compute this, and is not slower than the one for every GPU."""
    if window is not None or kv_length is not None or q.dtype.itemsize != 2 or scale <= 0:
        return False
    length, dim, keys = q.shape[2], q.shape[3], k.shape[2]
    return (
        dim in DIMS
        and length * _packed(q, k) >= 2 * HALF
        and (keys >= length or not causal)
        and _is_hopper(q.get_device())
        and describable(q, k, v)
    )


def _packed(q: Tensor, k: Tensor) -> int:
    """How many heads of a group are packed to the rows of a program: these must divide."""
    return math.gcd(q.shape[1] // k.shape[1], HALF)


@functools.cache
def _is_hopper(device: int) -> bool:
    """Whether a GPU multiplies by groups of warps from shared memory; later ones do no more."""
    return GLUON and device >= 0 and hardware.of_gpu(device).capability[0] == 9


def forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, keep: bool, tile: Tile
) -> tuple[Tensor, Tensor | None]:
    """The output, and with ``keep`` each row's log of the sum of exponentials."""
    batch, heads, length, _ = q.shape
    keys, packed = k.shape[2], _packed(q, k)
    n, stages = tile
    out = by_tokens(q)
    lse = None
    if keep:
        lse = torch.empty(batch, heads, length, dtype=torch.float32, device=q.device)
    programs = batch * (heads // packed) * cdiv(length * packed, 2 * HALF)
    with on_device(q):
        launch_forward((min(programs, sm_count(q.device.index)),),
            q, k, v, out, lse, batch, length, keys, *head_strides(q, k, v, out),
            **_constants(q, k, causal, scale), KEEP=keep, N=n, STAGES=stages, num_warps=WARPS,
        )  # fmt: skip
    return out, lse


def backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of queries, keys and values, on the present GPU."""
    batch, heads, length, _ = q.shape
    key_heads, keys = k.shape[1:3]
    groups = heads // _packed(q, k)
    packed, delta = pack(out, dout, lse, groups)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    constants = _constants(q, k, causal, scale)
    programs = batch * key_heads * cdiv(keys, 2 * HALF)
    launch_dkdv((min(programs, sm_count(q.device.index)),),
        q, k, v, dout, packed, delta, dk, dv, batch, length, keys, packed.stride(0),
        *head_strides(q, k, v, dout, dk, dv), **constants,
        M=BLOCK, STAGES=STAGES, num_warps=WARPS,
    )  # fmt: skip
    programs = batch * groups * cdiv(length * _packed(q, k), 2 * HALF)
    launch_dq((min(programs, sm_count(q.device.index)),),
        q, k, v, dout, packed, delta, dq, batch, length, keys, packed.stride(0),
        *head_strides(q, k, v, dout, dq), **constants,
        N=BLOCK, STAGES=STAGES, num_warps=WARPS,
    )  # fmt: skip
    return dq, dk, dv


def pack(out: Tensor, dout: Tensor, lse: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Normalisers and row sums of ``out dout``, each [B G, rows], a multiple of 16 bytes apart."""
    batch, heads, length, dim = out.shape
    rows = length * (heads // groups)
    packed, delta = lse.new_empty(2, batch * groups, 4 * cdiv(rows, 4))
    launch_pack_rows((cdiv(rows, ROWS), batch * groups),
        out, dout, lse, packed, delta, length, packed.stride(0), *head_strides(out, dout),
        GROUPS=groups, R=heads // groups, D=dim, ROWS=ROWS, num_warps=4,
    )  # fmt: skip
    return packed, delta


def _constants(q: Tensor, k: Tensor, causal: bool, scale: float) -> dict[str, Any]:
    packed = _packed(q, k)
    groups = q.shape[1] // packed
    return {
        "GROUPS": groups, "SHARE": groups // k.shape[1], "R": packed, "D": q.shape[3],
        "SCALE": scale, "CAUSAL": causal, "HALF": HALF,
    }  # fmt: skip
