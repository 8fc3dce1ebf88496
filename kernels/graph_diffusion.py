"""Diffusion over a graph of memory slots, all steps in one kernel.

    h_(s+1) = (1 - a) h_0 + a P h_s,    s = 0 ... steps - 1

Personalised PageRank by power iteration, as Gasteiger et al., "Predict then Propagate", 2019 (arXiv
1810.05997), equation 4, with 1 - a their restart probability. h holds one number per slot and
sample, P [M, M] is the graph's transition matrix. With g_steps = dh and g_s = a P^T g_(s+1),

    dh_0 = g_0 + (1 - a) sum over s >= 1 of g_s,    dP = a sum over s of g_(s+1) h_s^T.

Arithmetic is in FP32. The state never leaves the chip between steps, except that the backward pass
reads the h_s from memory.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from kernels.core.autograd import applied, needs_gradient, once_differentiable
from kernels.core.dispatch import run
from kernels.core.launch import launcher
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
    blank,
    cdiv,
    random_tensor,
    tensor_bytes,
    without_autocast,
)
from kernels.core.replay import replayed
from kernels.core.triton_helpers import (
    missing,
    no_fp64,
    on_device,
    power_of_two,
    rows_of,
    shared_bytes,
    tl,
    triton,
)
from kernels.core.tuning import Tile, Tunable, size_class

MAX_SLOTS = 128  # the complete graph is held on the chip
MOST_ROWS = 1 << 30  # rows of one product: cuBLAS accumulates no more than 2^31
NEEDED_BYTES = 150 << 10  # shared memory for that many slots


def graph_diffusion(
    h_BM: Tensor, p_MM: Tensor, *, steps: int = 3, alpha: float = 0.85, impl: str | None = None
) -> Tensor:
    """Diffuse ``h_BM`` [..., M] over ``p_MM``; returns h after ``steps``, of h's shape and dtype.

    Slot i of sample b takes ``p_MM[i, j]`` of slot j. ``alpha`` is a above, from 0 to 1. Both
    tensors get gradients. ``impl``: auto, torch or triton. Raises ``Mistake`` if shapes or
    arguments do not fit together.
    """
    return run(OP, impl, h_BM, p_MM, steps, alpha)


def _check(h: Tensor, p: Tensor, steps: int, alpha: float) -> None:
    alike("graph_diffusion", "h p", h, p)
    if h.dim() == 0 or p.shape != (h.shape[-1], h.shape[-1]):
        raise Mistake(
            f"graph_diffusion: expected h [..., M] and p [M, M], but got {tuple(h.shape)} and "
            f"{tuple(p.shape)}"
        )
    if steps < 1 or not 0 <= alpha <= 1:
        raise Mistake(
            f"graph_diffusion: steps must be at least 1 and alpha from 0 to 1, but are {steps} and "
            f"{alpha}"
        )


def reference(h_BM: Tensor, p_MM: Tensor, steps: int = 3, alpha: float = 0.85) -> Tensor:
    """Compute the definition."""
    wide = accumulator(h_BM.dtype)
    start = h = h_BM.to(wide)
    transposed = p_MM.to(wide).T
    with without_autocast(h_BM):
        for _ in range(steps):
            h = (1 - alpha) * start + alpha * (h @ transposed)
    return h.to(h_BM.dtype)


@triton.jit
def _graph_diffusion_steps_kernel(
    start_ptr,
    p_ptr,
    end_ptr,
    states_ptr,
    n_rows,
    start_stride,
    p_row,
    p_column,
    SLOTS: tl.constexpr,
    STEPS: tl.constexpr,
    ALPHA: tl.constexpr,
    BACKWARD: tl.constexpr,
    KEEP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute forward: ``end`` = h after all steps, ``states`` [STEPS, rows, SLOTS] = each h_s.

    ``BACKWARD``: start is dh, end is dh_0, and the states are the g_(s+1), each at the index of its
    h_s; P is transposed.
    """
    o_n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    o_m = tl.arange(0, BLOCK).to(tl.int64)
    m = (o_n < n_rows)[:, None] & (o_m < SLOTS)[None, :]
    b_start = tl.load(start_ptr + o_n[:, None] * start_stride + o_m[None, :], mask=m, other=0.0)
    b_start = b_start.to(tl.float32)
    if BACKWARD:
        o_p = o_m[:, None] * p_row + o_m[None, :] * p_column
    else:
        o_p = o_m[:, None] * p_column + o_m[None, :] * p_row
    m_p = (o_m < SLOTS)[:, None] & (o_m < SLOTS)[None, :]
    b_p = tl.load(p_ptr + o_p, mask=m_p, other=0.0).to(tl.float32)
    b_h = b_start
    b_sum = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for s in range(STEPS):
        if KEEP:
            # so that a gradient has the index of its state
            i_step = STEPS - 1 - s if BACKWARD else s
            i_state = tl.cast(i_step, tl.int64) * n_rows + o_n
            p_state = states_ptr + i_state[:, None] * SLOTS + o_m[None, :]
            tl.store(p_state, b_h, mask=m)
        b_next = ALPHA * tl.dot(b_h, b_p, input_precision="tf32x3")
        if BACKWARD:
            b_sum += (1 - ALPHA) * b_h
            b_h = b_next
        else:
            b_h = (1 - ALPHA) * b_start + b_next
    if BACKWARD:
        b_h += b_sum
    tl.store(end_ptr + o_n[:, None] * SLOTS + o_m[None, :], b_h, mask=m)


_launch_diffuse = launcher(_graph_diffusion_steps_kernel)


def _tiles(device: int, block: int, *_: Any) -> list[Tile]:
    """Return rows per program and warps of each tile."""
    first = (16, 8) if block > 64 else (32, 4)
    return list(dict.fromkeys([first, (16, 4), (16, 8), (32, 8), (32, 4), (64, 8)]))


_DIFFUSE = Tunable("graph_diffusion", (_graph_diffusion_steps_kernel,), _tiles)


@replayed
def _launch(
    start: Tensor, p: Tensor, steps: int, alpha: float, backward: bool, keep: bool
) -> tuple[Tensor, Tensor | None]:
    slots = p.shape[0]
    n_rows = start.numel() // slots
    end = blank(start)
    states = None
    if keep:
        states = torch.empty(steps * n_rows, slots, dtype=torch.float32, device=start.device)
    block = max(16, power_of_two(slots))
    key = (start.get_device(), block, start.dtype, steps, backward, keep, size_class(n_rows))
    tile, warps = _DIFFUSE.tile(key, _launch, start, p, steps, alpha, backward, keep)
    start, start_stride = rows_of(start)
    with on_device(start):
        _launch_diffuse(
            (cdiv(n_rows, tile),),
            start,
            p,
            end,
            states,
            n_rows,
            start_stride,
            *p.stride(),
            SLOTS=slots,
            STEPS=steps,
            ALPHA=alpha,
            BACKWARD=backward,
            KEEP=keep,
            ROWS=tile,
            BLOCK=block,
            num_warps=warps,
        )
    return end, states


class _Diffuse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, p: Tensor, steps: int, alpha: float, keep: bool) -> Tensor:
        end, states = _launch(h, p, steps, alpha, False, keep)
        ctx.save_for_backward(p, states)
        ctx.steps, ctx.alpha = steps, alpha
        return end

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dend: Tensor) -> tuple[Tensor | None, ...]:
        p, states = ctx.saved_tensors
        dh, slopes = _launch(dend, p, ctx.steps, ctx.alpha, True, states is not None)
        dp = None
        if states is not None and slopes is not None:
            total = torch.zeros_like(p, dtype=torch.float32)
            with without_autocast(p):
                pairs = zip(slopes.split(MOST_ROWS), states.split(MOST_ROWS), strict=True)
                for slope, state in pairs:
                    total.addmm_(slope.T, state, alpha=ctx.alpha)
            dp = total.to(p.dtype)
        return dh, dp, None, None, None


def _triton(h: Tensor, p: Tensor, steps: int, alpha: float) -> Tensor:
    return applied(_Diffuse, h, p, steps, alpha, needs_gradient(p))


def _refuses(h: Tensor, p: Tensor, steps: int, alpha: float) -> str | None:
    most = MAX_SLOTS if shared_bytes(h.device.index) >= NEEDED_BYTES else MAX_SLOTS // 2
    if p.shape[0] > most:
        return f"supports up to {most} slots on this GPU, not {p.shape[0]}"
    return no_fp64(h) if h.numel() else "does not support empty tensors"


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    rows, slots = case.sizes["rows"], case.sizes["slots"]
    make = {"device": device, "dtype": dtype}
    graph = random_tensor(slots, slots, device=device, dtype=torch.float32, seed=seed + 1)
    return {
        "h_BM": random_tensor(rows, slots, seed=seed, **make),
        "p_MM": graph.softmax(-1).to(dtype),
        "steps": case.sizes["steps"],
        "alpha": case.sizes.get("alpha", 0.85),
    }


def _cost(h_BM: Tensor, p_MM: Tensor, steps: int, alpha: float) -> Cost:
    state, graph = tensor_bytes(h_BM), tensor_bytes(p_MM)
    product = 2 * h_BM.numel() * p_MM.shape[0] * steps
    return Cost(Work(2 * state + graph, product), Work(3 * state + 2 * graph, 2 * product))


def _sizes(random: Random) -> dict[str, Any]:
    return {
        "rows": random.randint(1, 70),
        "slots": random.randint(1, 80),
        "steps": random.randint(1, 5),
        "alpha": random.choice((0.0, 0.5, 0.85, 1.0)),
    }


OP = Operator(
    name="graph_diffusion",
    function=graph_diffusion,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(_triton, missing, _refuses, replayed=True),
        "torch": Implementation(reference),
    },
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    huge=(
        Huge({"rows": (1 << 25) + 3, "slots": 64, "steps": 1}),
        # the states before each step are huge
        Huge({"rows": (1 << 29) + 3, "slots": 1, "steps": 5}),
    ),
    gradients=("h_BM", "p_MM"),
    cases=(
        Case("63x20 3 steps", {"rows": 63, "slots": 20, "steps": 3}),
        Case("1x1 1 step", {"rows": 1, "slots": 1, "steps": 1}),
        Case("100x100 2 steps", {"rows": 100, "slots": 100, "steps": 2}),
        Case("0x64 2 steps", {"rows": 0, "slots": 64, "steps": 2}),
        Case("4096x64 4 steps", {"rows": 4096, "slots": 64, "steps": 4}, bench=True),
        Case("65536x64 4 steps", {"rows": 65536, "slots": 64, "steps": 4}, bench=True),
        Case("16384x256 4 steps", {"rows": 16384, "slots": 256, "steps": 4}, bench=True),
    ),
)
