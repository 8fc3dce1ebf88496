"""Depthwise causal convolution over the sequence, with state: the short convolution of Mamba.

    y_t = act(bias + sum over k < W of weight_k xs_(t - W + 1 + k)),    act: identity or SiLU

per channel, where xs is the sequence after its initial state (zeros if there is none): Dao and Gu,
"Transformers are SSMs", 2024 (arXiv 2405.21060), section 7.1; the layer of Gu and Dao, "Mamba",
2023 (arXiv 2312.00752), section 3.4. The state holds the last W values of xs, oldest first. A later
call needs one less; published models keep W. Processing a sequence in pieces, each with the final
state of the piece before, gives the results of the complete sequence.

With p the sum above and u = dy act'(p), the gradients are

    dx_t = sum over k of weight_k u_(t + W - 1 - k),    dbias = sum of u_t,
    dweight_k = sum over t of u_t xs_(t - W + 1 + k).

A program walks along a stretch of the sequence with the last three rows in registers. It reads its
inputs once, and recomputes p in the backward pass. Arithmetic is in FP32.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from kernels.causal_conv1d._kernels import (
    causal_conv1d_backward_kernel,
    causal_conv1d_forward_kernel,
    launch_backward,
    launch_forward,
)
from kernels.core.autograd import absent_as_none, applied, once_differentiable
from kernels.core.column_sum import column_sums
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
    blank,
    cdiv,
    random_tensor,
    tensor_bytes,
    unit_stride,
)
from kernels.core.replay import replayed
from kernels.core.triton_helpers import (
    MAX_GRID,
    missing,
    no_fp64,
    on_device,
    power_of_two,
    sm_count,
)
from kernels.core.tuning import Key, Tile, Tunable
from kernels.measure import peers

ACTIVATIONS = (None, "silu")
WIDTHS = (2, 3, 4)
STRETCH = 128  # rows of the sequence per program, at most


def causal_conv1d(
    x_BLD: Tensor,
    weight_DW: Tensor,
    bias_D: Tensor | None = None,
    initial_state_BDW: Tensor | None = None,
    *,
    activation: str | None = None,
    update_state: bool = False,
    impl: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Convolve each channel of ``x_BLD`` with its W weights (2 to 4), the last one for time t.

    ``bias_D`` and ``initial_state_BDW`` may be None for zeros; all may have other floating dtypes
    than x. ``activation``: None or "silu". Returns y [B, L, D] and the final state [B, D, W], both
    of x's dtype. For decoding, L is 1. ``update_state``: the final state is written over
    ``initial_state_BDW``, which must have x's dtype and is returned; there are no gradients.
    ``impl``: auto, torch or triton. Raises ``Mistake`` if the arguments do not fit together, or
    need a gradient of an update.
    """
    return run(OP, impl, x_BLD, weight_DW, bias_D, initial_state_BDW, activation, update_state)


def _check(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor | None,
    activation: str | None,
    update: bool,
) -> None:
    op = "causal_conv1d"
    alike(op, "x weight bias initial_state", x, weight, bias, state)
    if x.dim() != 3 or weight.dim() != 2 or weight.shape[0] != x.shape[2]:
        raise Mistake(
            f"{op}: expected x [B, L, D] and weight [D, W], but got {tuple(x.shape)} and "
            f"{tuple(weight.shape)}"
        )
    batch, _, dim = x.shape
    width = weight.shape[1]
    if width not in WIDTHS:
        raise Mistake(f"{op}: the width must be one of {WIDTHS}, but weight has width {width}")
    if bias is not None and bias.shape != (dim,):
        raise Mistake(f"{op}: bias must be [{dim}], but is {tuple(bias.shape)}")
    if state is not None and state.shape != (batch, dim, width):
        raise Mistake(
            f"{op}: initial_state must be [B, D, W], here {(batch, dim, width)}, but is "
            f"{tuple(state.shape)}"
        )
    if activation not in ACTIVATIONS:
        raise Mistake(f"{op}: activation must be one of {ACTIVATIONS}, not {activation!r}")
    if update and (state is None or state.dtype != x.dtype):
        actual = None if state is None else state.dtype
        raise Mistake(f"{op}: update_state needs an initial_state of {x.dtype}, not {actual}")


def reference(
    x_BLD: Tensor,
    weight_DW: Tensor,
    bias_D: Tensor | None = None,
    initial_state_BDW: Tensor | None = None,
    activation: str | None = None,
    update_state: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute the definition."""
    (batch, length, dim), width = x_BLD.shape, weight_DW.shape[1]
    wide = accumulator(x_BLD.dtype)
    if initial_state_BDW is None:
        before = x_BLD.new_zeros(batch, width, dim, dtype=wide)
    else:
        before = initial_state_BDW.to(wide).transpose(1, 2)
    sequence = torch.cat((before, x_BLD.to(wide)), dim=1)
    weight = weight_DW.to(wide)
    p = sum(sequence[:, k + 1 : k + 1 + length] * weight[:, k] for k in range(width))
    if bias_D is not None:
        p = p + bias_D.to(wide)
    y = torch.nn.functional.silu(p) if activation == "silu" else p
    state = sequence[:, length:].transpose(1, 2)
    if update_state and initial_state_BDW is not None:
        return y.to(x_BLD.dtype), initial_state_BDW.copy_(state)
    return y.to(x_BLD.dtype), state.contiguous().to(x_BLD.dtype)


def _tiles(stages: int, device: int, dtype: torch.dtype, stretch: int, *_: Any) -> list[Tile]:
    """Return rows per program, bytes of a row per thread, warps and stages of each tile.

    The first measured on an H200: one warp finishes its loads soonest, and each stage but the first
    fetches four rows ahead.
    """
    tiles = [
        (stretch, 8, 1, stages),
        (stretch, 8, 1, 1),
        (max(4, stretch // 2), 8, 1, stages),
        (min(STRETCH, 2 * stretch), 8, 1, stages),
        (stretch, 16, 1, stages),
        (stretch, 4, 1, stages),
        (stretch, 8, 2, stages),
    ]
    return list(dict.fromkeys(tiles))


_FORWARD = Tunable(
    "causal_conv1d.forward", (causal_conv1d_forward_kernel,), partial(_tiles, 3), in_place=True
)
_BACKWARD = Tunable("causal_conv1d.backward", (causal_conv1d_backward_kernel,), partial(_tiles, 4))


def _key(x: Tensor, width: int, silu: bool, longest: int) -> Key:
    """Return the key of the tile; of the sizes it holds only the stretch.

    A long stretch reads fewer rows twice; it is shortened until every multiprocessor has eight
    programs.
    """
    batch, length, dim = x.shape
    columns = cdiv(dim, 32 * 8 // x.element_size())
    stretch = min(longest, max(4, power_of_two(length)))
    while stretch > 16 and batch * columns * cdiv(length, stretch) < 8 * sm_count(x.device.index):
        stretch //= 2
    return x.get_device(), x.dtype, stretch, width, silu


def _grid(x: Tensor, tile: Tile) -> tuple[int, int, int, int, tuple[int, int, int]]:
    """Return rows, channels, warps and stages per program, and the grid."""
    stretch, thread_bytes, warps, stages = tile
    block = 32 * warps * thread_bytes // x.element_size()
    batch, length, dim = x.shape
    if length > MAX_GRID * stretch:
        stretch = STRETCH
    return stretch, block, warps, stages, (cdiv(dim, block), cdiv(length, stretch), batch)


def _constants(
    weight: Tensor, bias: Tensor | None, state: Tensor | None, silu: bool
) -> dict[str, Any]:
    """Return the constants of the kernels of both directions, except those of the tile."""
    return {
        "W": weight.shape[1],
        "SILU": silu,
        "HAS_BIAS": bias is not None,
        "HAS_STATE": state is not None,
    }


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


@replayed
def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor | None,
    silu: bool,
    update: bool = False,
) -> tuple[Tensor, Tensor]:
    (batch, length, dim), width = x.shape, weight.shape[1]
    y = blank(x)
    x, weight = unit_stride(x), unit_stride(weight)
    key = _key(x, width, silu, 32)
    tile = _FORWARD.tile(key, _forward, x, weight, bias, state, silu, update)
    stretch, block, warps, stages, grid = _grid(x, tile)
    target = state if update and state is not None and state.is_contiguous() else None
    final = target
    if final is None:
        final = torch.empty(batch, dim, width, dtype=x.dtype, device=x.device)
    with on_device(x):
        launch_forward(
            grid,
            x,
            weight,
            _contiguous(bias),
            _contiguous(state),
            y,
            final,
            length,
            dim,
            *x.stride()[:2],
            weight.stride(0),
            IN_PLACE=target is not None,
            STRETCH=stretch,
            STAGES=stages,
            BLOCK_D=block,
            num_warps=warps,
            **_constants(weight, bias, state, silu),
        )
    if update and target is None and state is not None:
        final = state.copy_(final)
    return y, final


@replayed
def _backward(
    dy: Tensor,
    dfinal: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of x, weight, bias and state."""
    (batch, length, dim), width = x.shape, weight.shape[1]
    dx = blank(x)
    dstate = None
    if state is not None:
        dstate = torch.empty(batch, dim, width, dtype=state.dtype, device=x.device)
    x, dy, weight = unit_stride(x), unit_stride(dy), unit_stride(weight)
    key = _key(x, width, silu, STRETCH)
    tile = _BACKWARD.tile(key, _backward, dy, dfinal, x, weight, bias, state, silu)
    stretch, block, warps, stages, grid = _grid(x, tile)
    shares = torch.empty(grid[1] * batch, (width + 1) * dim, dtype=torch.float32, device=x.device)
    with on_device(x):
        launch_backward(
            grid,
            dy,
            _contiguous(dfinal),
            x,
            weight,
            _contiguous(bias),
            _contiguous(state),
            dx,
            dstate,
            shares,
            length,
            dim,
            *dy.stride()[:2],
            *x.stride()[:2],
            weight.stride(0),
            HAS_DFINAL=dfinal is not None,
            STRETCH=stretch,
            STAGES=stages,
            BLOCK_D=block,
            num_warps=warps,
            **_constants(weight, bias, state, silu),
        )
        dweight = blank(weight)
        dbias = None if bias is None else blank(bias)
        column_sums(shares, dweight, dbias, ends=(width * dim,))
    return dx, dweight, dbias, dstate


class _CausalConv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        state: Tensor | None,
        silu: bool,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight, bias, state)
        ctx.silu = silu
        absent_as_none(ctx)
        return _forward(x, weight, bias, state, silu)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dfinal: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, bias, state = ctx.saved_tensors
        dy = torch.zeros_like(x) if dy is None else dy
        return *_backward(dy, dfinal, x, weight, bias, state, ctx.silu), None


def _triton(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor | None,
    activation: str | None,
    update: bool,
) -> tuple[Tensor, Tensor]:
    silu = activation == "silu"
    if update:
        return _forward(x, weight, bias, state, silu, True)
    return applied(_CausalConv, x, weight, bias, state, silu)


def _refuses(x: Tensor, *_: Any) -> str | None:
    batch, length, _ = x.shape
    if max(batch, cdiv(length, STRETCH)) > MAX_GRID:
        return (
            f"supports up to {MAX_GRID} samples of {MAX_GRID * STRETCH} rows, "
            f"not {batch} of {length}"
        )
    return no_fp64(x) if x.numel() else "does not support empty tensors"


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    size = case.sizes
    batch, length, dim, width = (size[n] for n in ("batch", "length", "dim", "width"))
    make = {"device": device, "dtype": dtype}
    wide = torch.float32 if size.get("wide") else dtype
    bias = random_tensor(dim, seed=seed + 2, device=device, dtype=wide)
    state = random_tensor(batch, dim, width, seed=seed + 3, device=device, dtype=wide)
    return {
        "x_BLD": random_tensor(batch, length, dim, seed=seed, **make),
        "weight_DW": random_tensor(dim, width, seed=seed + 1, scale=0.5, device=device, dtype=wide),
        "bias_D": bias if size.get("bias", True) else None,
        "initial_state_BDW": state if size.get("state", True) else None,
        "activation": size.get("activation", "silu"),
        "update_state": size.get("update", False),
    }


def _written(*inputs: Any) -> tuple[str, ...]:
    return ("initial_state_BDW",) if inputs[-1] else ()


def _cost(
    x_BLD: Tensor,
    weight_DW: Tensor,
    bias_D: Tensor | None,
    initial_state_BDW: Tensor | None,
    activation: str | None,
    update_state: bool = False,
) -> Cost:
    n, width, x_bytes = x_BLD.numel(), weight_DW.shape[1], tensor_bytes(x_BLD)
    small = tensor_bytes(weight_DW, bias_D, initial_state_BDW)
    small += x_BLD.shape[0] * weight_DW.numel() * x_BLD.element_size()
    per = 2 * width + (4 if activation else 0)
    backward = Work(3 * x_bytes + 2 * small, 3 * per * n)
    return Cost(Work(2 * x_bytes + small, per * n), None if update_state else backward)


def _sizes(random: Random) -> dict[str, Any]:
    update = random.random() < 0.3
    return {
        "batch": random.randint(1, 2),
        "length": random.randint(1, 20),
        "dim": random.randint(1, 140),
        "width": random.choice(WIDTHS),
        "bias": random.random() < 0.7,
        "state": update or random.random() < 0.7,
        "activation": random.choice(ACTIVATIONS),
        "wide": not update and random.random() < 0.3,
        "update": update,
    }


def _case(batch: int, length: int, dim: int, width: int = 4, **more: Any) -> dict[str, Any]:
    return {"batch": batch, "length": length, "dim": dim, "width": width} | more


def _last_rows(inputs: Inputs) -> Inputs:
    x, width = inputs["x_BLD"], inputs["weight_DW"].shape[1]
    before = x[:, -2 - width : -2].transpose(1, 2)
    return inputs | {"x_BLD": x[:, -2:], "initial_state_BDW": before}


OP = Operator(
    name="causal_conv1d",
    function=causal_conv1d,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(_triton, missing, _refuses, replayed=True),
        "torch": Implementation(reference),
        **peers.options("causal_conv1d"),
    },
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    huge=(
        Huge(_case((1 << 9) + 3, 4096, 1024, state=False)),
        Huge(_case(1, (1 << 21) + 3, 1024, state=False), _last_rows),
    ),
    written=_written,
    gradients=("x_BLD", "weight_DW", "bias_D", "initial_state_BDW"),
    cases=(
        Case("B2 L17 D20 W4", _case(2, 17, 20)),
        Case("B1 L1 D1 W2", _case(1, 1, 1, 2)),
        Case("B2 L2 D130 W4 decode", _case(2, 2, 130, wide=True)),
        Case(
            "B1 L37 D9 W3 bare",
            _case(1, 37, 9, 3, bias=False, state=False, activation=None, wide=True),
        ),
        Case("B2 L1 D130 W4 update", _case(2, 1, 130, update=True)),
        Case("B2 L40 D9 W3 update", _case(2, 40, 9, 3, update=True)),
        Case("B2 L0 D5 W4", _case(2, 0, 5)),
        Case("B8 S4096 D5376 W4", _case(8, 4096, 5376, state=False), bench=True),
        Case("B1 S65536 D5376 W4", _case(1, 65536, 5376, state=False), bench=True),
    ),
)
