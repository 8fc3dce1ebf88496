"""Which forward passes of our own attention take the kernel for Hopper, and its launch."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from kernels import hardware
from kernels._launch import launcher
from kernels._operator import by_tokens, cdiv
from kernels._triton import GLUON, describable, head_strides, on_device, sm_count
from kernels._tuning import Key, Tile, Tunable
from kernels.attention._hopper_kernels import HALF, WARPS, attention_hopper_kernel

DIMS = (64, 128)
launch_forward = launcher(attention_hopper_kernel)


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
    heads = q.shape[1] // k.shape[1]
    return (
        dim in DIMS
        and HALF % heads == 0
        and length * heads >= 2 * HALF
        and (keys >= length or not causal)
        and _is_hopper(q.get_device())
        and describable(q, k, v)
    )


@functools.cache
def _is_hopper(device: int) -> bool:
    """Whether a GPU multiplies by groups of warps from shared memory; later ones do no more."""
    return GLUON and device >= 0 and hardware.of_gpu(device).capability[0] == 9


def forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, keep: bool, tile: Tile
) -> tuple[Tensor, Tensor | None]:
    """The output, and with ``keep`` each row's log of the sum of exponentials."""
    batch, heads, length, dim = q.shape
    groups, keys = k.shape[1:3]
    n, stages = tile
    out = by_tokens(q)
    lse = None
    if keep:
        lse = torch.empty(batch, heads, length, dtype=torch.float32, device=q.device)
    programs = batch * groups * cdiv(length * (heads // groups), 2 * HALF)
    with on_device(q):
        launch_forward((min(programs, sm_count(q.device.index)),),
            q, k, v, out, lse, batch, length, keys, *head_strides(q, k, v, out),
            GROUPS=groups, R=heads // groups, D=dim, SCALE=scale, CAUSAL=causal, KEEP=keep,
            HALF=HALF, N=n, STAGES=stages, num_warps=WARPS,
        )  # fmt: skip
    return out, lse
