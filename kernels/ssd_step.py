"""One step of Mamba-2's selective scan, for decoding: ``ssd_scan`` of a sequence of one.

    dt = softplus(dt + dt_bias),    h' = exp(dt A) h + dt x B^T,    y = h' C + D x

for each head with its state h [P, N]: Dao and Gu, "Transformers are SSMs", 2024 (arXiv 2405.21060),
equation 2. The new state is returned, and the old one is left as it was. The state is read and
written once and nothing else is large, so that memory bounds it. Arithmetic is in FP32.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from kernels._dispatch import run
from kernels._launch import launcher
from kernels._operator import (
    Case,
    Cost,
    Implementation,
    Inputs,
    Operator,
    Work,
    accumulator,
    blank,
    cdiv,
    tensor_bytes,
    unit_stride,
)
from kernels._triton import MAX_GRID, missing, no_fp64, on_device, power_of_two, tl, triton
from kernels._tuning import Tile, Tunable, size_class
from kernels.ssd_scan import random_inputs, step_sizes, validate
from kernels.ssd_scan._kernels import soft_step

TILE = 2048  # elements of the state that one program takes


def ssd_step(
    x_BHP: Tensor,
    dt_BH: Tensor,
    A_H: Tensor,
    B_BGN: Tensor,
    C_BGN: Tensor,
    state_BHPN: Tensor,
    D_H: Tensor | None = None,
    dt_bias_H: Tensor | None = None,
    *,
    dt_softplus: bool = True,
    impl: str | None = None,
) -> tuple[Tensor, Tensor]:
    """One step: y [B, H, P] of x's dtype, and the new state [B, H, P, N] of the old one's.

    The inputs are those of ``ssd_scan`` without L. It has no backward pass by Triton: where
    gradients are asked for, auto takes torch. ``impl``: auto, torch or triton. Raises ``Mistake``
    for what does not go together.
    """
    validate("ssd_step", 3, x_BHP, dt_BH, A_H, B_BGN, C_BGN, D_H, dt_bias_H, state_BHPN)
    return run(OP, impl, x_BHP, dt_BH, A_H, B_BGN, C_BGN, state_BHPN, D_H, dt_bias_H, dt_softplus)


def reference(
    x_BHP: Tensor,
    dt_BH: Tensor,
    A_H: Tensor,
    B_BGN: Tensor,
    C_BGN: Tensor,
    state_BHPN: Tensor,
    D_H: Tensor | None = None,
    dt_bias_H: Tensor | None = None,
    dt_softplus: bool = True,
) -> tuple[Tensor, Tensor]:
    """The definition."""
    wide = accumulator(x_BHP.dtype)
    per_group = x_BHP.shape[1] // B_BGN.shape[1]
    x = x_BHP.to(wide)
    b_BHN, c_BHN = (t.to(wide).repeat_interleave(per_group, dim=1) for t in (B_BGN, C_BGN))
    dt = step_sizes(dt_BH, dt_bias_H, dt_softplus, wide)
    fall = torch.exp(dt * A_H.to(wide))[..., None, None]
    h = fall * state_BHPN.to(wide) + (dt[..., None] * x)[..., None] * b_BHN[:, :, None]
    y = (h * c_BHN[:, :, None]).sum(-1)
    if D_H is not None:
        y = y + x * D_H.to(wide)[:, None]
    return y.to(x_BHP.dtype), h.to(state_BHPN.dtype)


@triton.jit
def _ssd_step_kernel(
    x_ptr,
    dt_ptr,
    a_ptr,
    b_ptr,
    c_ptr,
    state_ptr,
    d_ptr,
    bias_ptr,
    y_ptr,
    new_ptr,
    heads_per_group,
    x_batch,
    x_head,
    dt_batch,
    dt_head,
    b_batch,
    b_group,
    c_batch,
    c_group,
    P: tl.constexpr,
    N: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    HAS_D: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    i_h = tl.program_id(1).to(tl.int64)
    i_b = tl.program_id(2).to(tl.int64)
    i_g = i_h // heads_per_group
    o_p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    o_n = tl.arange(0, BLOCK_N)
    m_p = o_p < P
    m_n = o_n < N
    dt = tl.load(dt_ptr + i_b * dt_batch + i_h * dt_head).to(tl.float32)
    if HAS_BIAS:
        dt += tl.load(bias_ptr + i_h).to(tl.float32)
    if SOFTPLUS:
        dt = soft_step(dt)
    fall = tl.exp(dt.to(tl.float64) * tl.load(a_ptr + i_h).to(tl.float64)).to(tl.float32)
    b_x = tl.load(x_ptr + i_b * x_batch + i_h * x_head + o_p, mask=m_p, other=0.0).to(tl.float32)
    b_b = tl.load(b_ptr + i_b * b_batch + i_g * b_group + o_n, mask=m_n, other=0.0)
    b_c = tl.load(c_ptr + i_b * c_batch + i_g * c_group + o_n, mask=m_n, other=0.0)
    i_head = i_b * tl.num_programs(1) + i_h
    o_state = i_head * (P * N) + o_p[:, None] * N + o_n[None, :]
    m = m_p[:, None] & m_n[None, :]
    b_state = tl.load(state_ptr + o_state, mask=m, other=0.0).to(tl.float32) * fall
    b_state += (b_x * dt)[:, None] * b_b.to(tl.float32)[None, :]
    tl.store(new_ptr + o_state, b_state, mask=m)
    b_y = tl.sum(b_state * b_c.to(tl.float32)[None, :], axis=1)
    if HAS_D:
        b_y += b_x * tl.load(d_ptr + i_h).to(tl.float32)
    tl.store(y_ptr + i_head * P + o_p, b_y, mask=m_p)


_launch_step = launcher(_ssd_step_kernel)


def _tiles(device: int, dim: int, n_states: int, *_: Any) -> list[Tile]:
    """Rows of the state of a program, and warps."""
    most, block = power_of_two(dim), power_of_two(n_states)
    rows = max(1, min(most, TILE // block))
    half, twice = max(1, rows // 2), min(most, 2 * rows)
    return [(rows, 4), (rows, 2), (rows, 8), (half, 2), (half, 4), (half, 1), (twice, 8)]


_STEP = Tunable("ssd_step", (_ssd_step_kernel,), _tiles)


def _triton(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    state: Tensor,
    d: Tensor | None,
    bias: Tensor | None,
    softplus: bool,
) -> tuple[Tensor, Tensor]:
    (batch, heads, dim), (groups, n_states) = x.shape, b.shape[1:]
    y = blank(x)
    new = blank(state)
    x, b, c = unit_stride(x), unit_stride(b), unit_stride(c)
    block_n = power_of_two(n_states)
    key = (x.get_device(), dim, n_states, x.dtype, state.dtype, size_class(batch * heads))
    block_p, warps = _STEP.tile(key, _triton, x, dt, a, b, c, state, d, bias, softplus)
    with on_device(x):
        _launch_step(
            (cdiv(dim, block_p), heads, batch),
            x,
            dt,
            a.contiguous(),
            b,
            c,
            state.contiguous(),
            d if d is None else d.contiguous(),
            bias if bias is None else bias.contiguous(),
            y,
            new,
            heads // groups,
            *x.stride()[:2],
            *dt.stride()[:2],
            *b.stride()[:2],
            *c.stride()[:2],
            P=dim,
            N=n_states,
            SOFTPLUS=softplus,
            HAS_D=d is not None,
            HAS_BIAS=bias is not None,
            BLOCK_P=block_p,
            BLOCK_N=block_n,
            num_warps=warps,
        )
    return y, new


def _refuses(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, *others: Any) -> str | None:
    if not x.numel() or not b.numel():
        return "takes no empty tensors"
    if max(x.shape[:2]) > MAX_GRID:
        return f"takes up to {MAX_GRID} samples and heads, not {x.shape[0]} and {x.shape[1]}"
    if b.shape[2] > TILE:
        return f"holds rows of at most {TILE} states, not {b.shape[2]}"
    if torch.is_grad_enabled():
        for tensor in (x, dt, a, b, *others):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                return "has no backward pass; call it under torch.no_grad(), or use ssd_scan"
    return no_fp64(x)


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    found = random_inputs(case, device, dtype, seed, ())
    order = {
        "x_BHP": "x", "dt_BH": "dt", "A_H": "A", "B_BGN": "B", "C_BGN": "C",
        "state_BHPN": "state", "D_H": "D", "dt_bias_H": "dt_bias",
    }  # fmt: skip
    softplus = case.sizes.get("softplus", True)
    return {name: found[key] for name, key in order.items()} | {"dt_softplus": softplus}


def _cost(x_BHP: Tensor, state_BHPN: Tensor, **others: Any) -> Cost:
    small = tensor_bytes(*[t for t in others.values() if isinstance(t, Tensor)])
    state = tensor_bytes(state_BHPN)
    return Cost(Work(2 * tensor_bytes(x_BHP) + small + 2 * state, 5 * state_BHPN.numel()))


def _sizes(random: Random) -> dict[str, Any]:
    groups = random.choice((1, 2, 4))
    return {
        "batch": random.randint(1, 3),
        "heads": groups * random.randint(1, 3),
        "dim": random.randint(1, 70),
        "groups": groups,
        "states": random.randint(1, 130),
        "d": random.random() < 0.7,
        "bias": random.random() < 0.7,
        "wide": random.random() < 0.5,
    }


def _case(batch: int, heads: int, dim: int, groups: int, states: int, **more: Any) -> Any:
    named = {"batch": batch, "heads": heads, "dim": dim, "groups": groups, "states": states}
    return named | more


OP = Operator(
    name="ssd_step",
    function=ssd_step,
    reference=reference,
    implementations={
        "triton": Implementation(_triton, missing, _refuses),
        "torch": Implementation(reference),
    },
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    cases=(
        Case("B3 H6 P33 G2 N100", _case(3, 6, 33, 2, 100)),
        Case("B1 H1 P1 G1 N1", _case(1, 1, 1, 1, 1, d=False, bias=False)),
        Case("B2 H2 P64 G1 N128 narrow", _case(2, 2, 64, 1, 128, wide=False, softplus=False)),
        Case("B128 H80 P64 G1 N128", _case(128, 80, 64, 1, 128), bench=True),
        Case("B1 H80 P64 G1 N128", _case(1, 80, 64, 1, 128), bench=True),
    ),
)
