"""One step of Mamba-2's selective scan, for decoding: ``ssd_scan`` of a sequence of one.

    dt = softplus(dt + dt_bias),    h' = exp(dt A) h + dt x B^T,    y = h' C + D x

for each head with its state h [P, N]: Dao and Gu, "Transformers are SSMs", 2024 (arXiv 2405.21060),
equation 2. The new state is returned; decoding writes it over the old one. A may be given as
log(-A), which is the parameter of models. With f = exp(dt A) and G = dh' + dy C^T, the complete
gradient of the new state, the gradients are

    dh = f G,    dx = dt G B + D dy,    dB = sum of dt G^T x,    dC = sum of h'^T dy
    dD = dy . x,    dA = dt f <G, h>,    ddt = (x . G B + A f <G, h>) softplus'(dt + dt_bias)

with the sums of dB and dC over the heads of a group, and those of dA, dD and dt_bias, whose terms
are ddt, over samples. The gradient of log(-A) is A dA.

The backward pass recomputes h' from h, the only saved tensor: consecutive steps can be trained
through, at the cost of one state each. The state is read and written once, backward read twice and
written once, and nothing else is large, so that memory bounds it. Arithmetic is in FP32, and in
FP64 for the sums of ddt, dA and dD.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from kernels.core.autograd import absent_as_none, applied, once_differentiable
from kernels.core.column_sum import column_sums
from kernels.core.dispatch import run
from kernels.core.operator import (
    Case,
    Cost,
    Huge,
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
from kernels.core.replay import replayed
from kernels.core.triton_helpers import MAX_GRID, missing, no_fp64, on_device, power_of_two
from kernels.core.tuning import Key, Tile, Tunable, size_class
from kernels.ssd_scan import random_inputs, validate
from kernels.ssd_scan._group_sums import over_heads
from kernels.ssd_scan._plain import step_sizes
from kernels.ssd_step._kernels import (
    launch_backward,
    launch_step,
    ssd_step_backward_kernel,
    ssd_step_kernel,
)

TILE = 2048  # elements of the state per program


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
    log_decay: bool = False,
    update_state: bool = False,
    impl: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute one step: y [B, H, P] in x's dtype, and the new state [B, H, P, N] in the old one's.

    The inputs are those of ``ssd_scan`` without L; all tensors get gradients, also through the new
    state. ``log_decay``: ``A_H`` holds log(-A). ``update_state``: the new state is written over
    ``state_BHPN``, which is returned; there are no gradients. ``impl``: auto, torch or triton.
    Raises ``Mistake`` if the arguments do not fit together, or need a gradient of an update.
    """
    return run(
        OP, impl, x_BHP, dt_BH, A_H, B_BGN, C_BGN, state_BHPN, D_H, dt_bias_H,
        dt_softplus, log_decay, update_state,
    )  # fmt: skip


def _check(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    state: Tensor,
    d: Tensor | None,
    bias: Tensor | None,
    *_: bool,
) -> None:
    validate("ssd_step", 3, x, dt, a, b, c, d, bias, state)


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
    log_decay: bool = False,
    update_state: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute the definition."""
    wide = accumulator(x_BHP.dtype)
    per_group = x_BHP.shape[1] // B_BGN.shape[1]
    x = x_BHP.to(wide)
    b_BHN, c_BHN = (t.to(wide).repeat_interleave(per_group, dim=1) for t in (B_BGN, C_BGN))
    dt = step_sizes(dt_BH, dt_bias_H, dt_softplus, wide)
    a = -A_H.to(wide).exp() if log_decay else A_H.to(wide)
    fall = torch.exp(dt * a)[..., None, None]
    h = fall * state_BHPN.to(wide) + (dt[..., None] * x)[..., None] * b_BHN[:, :, None]
    y = (h * c_BHN[:, :, None]).sum(-1)
    if D_H is not None:
        y = y + x * D_H.to(wide)[:, None]
    new = state_BHPN.copy_(h) if update_state else h.to(state_BHPN.dtype)
    return y.to(x_BHP.dtype), new


def _tiles(device: int, dim: int, n_states: int, *_: Any) -> list[Tile]:
    """Return rows of the state per program and warps of each tile."""
    most, block = power_of_two(dim), power_of_two(n_states)
    rows = max(1, min(most, TILE // block))
    half, twice = max(1, rows // 2), min(most, 2 * rows)
    return [(rows, 4), (rows, 2), (rows, 8), (half, 2), (half, 4), (half, 1), (twice, 8)]


def _forward_tiles(*key: Any) -> list[Tile]:
    """Return the same, beginning with half of the rows in one warp: the fastest on an H200."""
    tiles = _tiles(*key)
    return sorted(tiles, key=lambda tile: tile[1] > 1)


_FORWARD = Tunable("ssd_step.forward", (ssd_step_kernel,), _forward_tiles, in_place=True)
_BACKWARD = Tunable("ssd_step.backward", (ssd_step_backward_kernel,), _tiles)


def _key(x: Tensor, b: Tensor, state: Tensor) -> Key:
    batch, heads, dim = x.shape
    return x.get_device(), dim, b.shape[2], x.dtype, state.dtype, size_class(batch * heads)


def _laid_out(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    state: Tensor,
    d: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """Return the inputs as the kernels read them, copied only if needed."""
    return (
        unit_stride(x),
        dt,
        a.contiguous(),
        unit_stride(b),
        unit_stride(c),
        state.contiguous(),
        d if d is None else d.contiguous(),
        bias if bias is None else bias.contiguous(),
    )


def _strides(read: tuple[Tensor | None, ...]) -> tuple[int, ...]:
    """Return the strides of samples, and of heads or groups: x, dt, B and C."""
    x, dt, _, b, c, *_ = read
    assert x is not None and dt is not None and b is not None and c is not None
    return *x.stride()[:2], *dt.stride()[:2], *b.stride()[:2], *c.stride()[:2]


@replayed
def _forward(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    state: Tensor,
    d: Tensor | None,
    bias: Tensor | None,
    softplus: bool,
    log_decay: bool,
    update: bool = False,
) -> tuple[Tensor, Tensor]:
    (batch, heads, dim), (groups, n_states) = x.shape, b.shape[1:]
    y = blank(x)
    in_place = update and state.is_contiguous()
    new = state if in_place else blank(state)
    read = _laid_out(x, dt, a, b, c, state, d, bias)
    key = _key(x, b, state)
    block_p, warps = _FORWARD.tile(
        key, _forward, x, dt, a, b, c, state, d, bias, softplus, log_decay, update
    )
    with on_device(x):
        launch_step(
            (cdiv(dim, block_p), heads, batch),
            *read,
            y,
            new,
            heads // groups,
            *_strides(read),
            P=dim,
            N=n_states,
            SOFTPLUS=softplus,
            LOG_DECAY=log_decay,
            HAS_D=d is not None,
            HAS_BIAS=bias is not None,
            IN_PLACE=in_place,
            BLOCK_P=block_p,
            BLOCK_N=power_of_two(n_states),
            num_warps=warps,
        )
    if update and not in_place:
        state.copy_(new)
    return y, state if update else new


@replayed
def _backward(
    dy: Tensor,
    dnew: Tensor | None,
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    state: Tensor,
    d: Tensor | None,
    bias: Tensor | None,
    softplus: bool,
    log_decay: bool,
    need_state: bool,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the inputs, dstate only if it is needed."""
    (batch, heads, dim), (groups, n_states) = x.shape, b.shape[1:]
    dx, ddt = blank(x), blank(dt)
    shared = torch.float32 if groups < heads else b.dtype
    db = torch.empty(batch, heads, n_states, dtype=shared, device=x.device)
    dc = torch.empty_like(db)
    dstate = blank(state) if need_state else None
    share = torch.empty(batch, 3 * heads, dtype=torch.float64, device=x.device)
    da = blank(a)
    dd = None if d is None else blank(d)
    dbias = None if bias is None else blank(bias)
    dy, read = unit_stride(dy), _laid_out(x, dt, a, b, c, state, d, bias)
    key = (*_key(x, b, state), need_state)
    block_p, warps = _BACKWARD.tile(
        key, _backward, dy, dnew, x, dt, a, b, c, state, d, bias, softplus, log_decay, need_state
    )
    with on_device(x):
        launch_backward(
            (heads, batch),
            dy,
            dnew if dnew is None else dnew.contiguous(),
            *read,
            dx,
            ddt,
            db,
            dc,
            dstate,
            share,
            heads // groups,
            *dy.stride()[:2],
            *_strides(read),
            P=dim,
            N=n_states,
            SOFTPLUS=softplus,
            LOG_DECAY=log_decay,
            HAS_D=d is not None,
            HAS_BIAS=bias is not None,
            HAS_DNEW=dnew is not None,
            DSTATE=need_state,
            BLOCK_P=block_p,
            BLOCK_N=power_of_two(n_states),
            num_warps=warps,
        )
        column_sums(share, da, dd, dbias, ends=(heads, 2 * heads))
        db, dc = over_heads(db, dc, groups, b.dtype)
    return dx, ddt, da, db, dc, dstate, dd, dbias


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        dt: Tensor,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        state: Tensor,
        d: Tensor | None,
        bias: Tensor | None,
        softplus: bool,
        log_decay: bool,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, dt, a, b, c, state, d, bias)
        ctx.settings = softplus, log_decay
        absent_as_none(ctx)
        return _forward(x, dt, a, b, c, state, d, bias, softplus, log_decay)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dnew: Tensor | None) -> tuple[Tensor | None, ...]:
        x, dt, a, b, c, state, d, bias = ctx.saved_tensors
        dy = torch.zeros_like(x) if dy is None else dy
        need_state = ctx.needs_input_grad[5]
        softplus, log_decay = ctx.settings
        gradients = _backward(
            dy, dnew, x, dt, a, b, c, state, d, bias, softplus, log_decay, need_state
        )
        return *gradients, None, None


def _triton(*arguments: Any) -> tuple[Tensor, Tensor]:
    *inputs, update = arguments
    return _forward(*arguments) if update else applied(_Step, *inputs)


def _refuses(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, *_: Any) -> str | None:
    if not x.numel() or not b.numel():
        return "does not support empty tensors"
    if max(x.shape[:2]) > MAX_GRID:
        return f"supports up to {MAX_GRID} samples and heads, not {x.shape[0]} and {x.shape[1]}"
    if b.shape[2] > TILE:
        return f"supports rows of at most {TILE} states, not {b.shape[2]}"
    return no_fp64(x)


_ORDER = {
    "x_BHP": "x", "dt_BH": "dt", "A_H": "A", "B_BGN": "B", "C_BGN": "C",
    "state_BHPN": "state", "D_H": "D", "dt_bias_H": "dt_bias",
}  # fmt: skip


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    drawn = random_inputs(case, device, dtype, seed, ())
    sizes = case.sizes
    if sizes.get("log"):
        drawn["A"] = (-drawn["A"]).log()
    return {name: drawn[key] for name, key in _ORDER.items()} | {
        "dt_softplus": sizes.get("softplus", True),
        "log_decay": sizes.get("log", False),
        "update_state": sizes.get("update", False),
    }


def _written(*inputs: Any) -> tuple[str, ...]:
    return ("state_BHPN",) if inputs[-1] else ()


def _cost(x_BHP: Tensor, state_BHPN: Tensor, update_state: bool = False, **rest: Any) -> Cost:
    small = tensor_bytes(*[t for t in rest.values() if isinstance(t, Tensor)])
    x, state, n = tensor_bytes(x_BHP), tensor_bytes(state_BHPN), state_BHPN.numel()
    # Per number of the state: G, its products with h, B and x, h' and its product with dy, and dh.
    backward = Work(3 * (x + state) + 2 * small, 14 * n)
    return Cost(Work(2 * x + small + 2 * state, 5 * n), None if update_state else backward)


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
        "log": random.random() < 0.5,
        "update": random.random() < 0.3,
    }


def _case(batch: int, heads: int, dim: int, groups: int, states: int, **more: Any) -> Any:
    named = {"batch": batch, "heads": heads, "dim": dim, "groups": groups, "states": states}
    return named | more


OP = Operator(
    name="ssd_step",
    function=ssd_step,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(_triton, missing, _refuses, replayed=True),
        "torch": Implementation(reference),
    },
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    huge=(Huge(_case((1 << 14) + 3, 16, 64, 1, 128, wide=False)),),
    gradients=tuple(_ORDER),
    written=_written,
    cases=(
        Case("B3 H6 P33 G2 N100", _case(3, 6, 33, 2, 100)),
        Case("B1 H1 P1 G1 N1", _case(1, 1, 1, 1, 1, d=False, bias=False)),
        Case("B2 H2 P64 G1 N128 narrow", _case(2, 2, 64, 1, 128, wide=False, softplus=False)),
        Case("B2 H4 P9 G2 N20 log", _case(2, 4, 9, 2, 20, log=True)),
        Case("B2 H4 P33 G2 N100 update", _case(2, 4, 33, 2, 100, log=True, update=True)),
        Case("B0 H4 P8 G2 N8", _case(0, 4, 8, 2, 8)),
        Case("B128 H80 P64 G1 N128", _case(128, 80, 64, 1, 128), bench=True),
        Case("B1 H80 P64 G1 N128", _case(1, 80, 64, 1, 128), bench=True),
    ),
)
