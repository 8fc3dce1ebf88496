"""Gated activations ``act(gate) * up``: the shared code of swiglu and geglu.

With s = act(gate) and s' its derivative: dgate = dy up s', dup = dy s.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from kernels.core.autograd import applied, needs_gradient, once_differentiable
from kernels.core.launch import launcher
from kernels.core.operator import (
    Case,
    Cost,
    Huge,
    Inputs,
    Mistake,
    Work,
    alike,
    blank,
    cdiv,
    random_tensor,
    tensor_bytes,
)
from kernels.core.replay import replayed
from kernels.core.triton_helpers import on_device, rows_of, tl, triton
from kernels.core.tuning import Key, Tile, Tunable, size_class

# Block and warps.
TILES: list[Tile] = [(1024, 4), (2048, 8), (2048, 4), (4096, 8), (4096, 16), (1024, 8)]


def validate(op: str, gate: Tensor, up: Tensor | None) -> None:
    """Raise ``Mistake`` unless ``gate`` and ``up`` go together, or ``gate`` alone is packed."""
    alike(op, "gate up", gate, up)
    if up is None:
        if gate.dim() == 0 or gate.shape[-1] % 2:
            raise Mistake(
                f"{op}: one packed tensor must have an even last dimension (gate, then up), "
                f"but has shape {tuple(gate.shape)}; pass gate and up for two tensors"
            )
    elif gate.dim() == 0 or up.shape != gate.shape or up.dtype != gate.dtype:
        raise Mistake(
            f"{op}: gate and up must have one dtype and one shape of at least one dimension, but "
            f"are {tuple(gate.shape)} {gate.dtype} and {tuple(up.shape)} {up.dtype}"
        )


def halves(gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return gate and up, from two tensors or from the packed one."""
    if up is not None:
        return gate, up
    width = gate.shape[-1] // 2
    return gate[..., :width], gate[..., width:]


def is_fused_by_compiler(gate: Tensor, up: Tensor | None, *_: Any) -> bool:
    """Return False for the gradient of packed halves: Inductor computes each half twice.

    On an H200, that took 70 us for 8,192 rows of 2 x 2048 in BF16, and this kernel 42 us.
    """
    return up is not None or not needs_gradient(gate)


@triton.jit
def sigmoid(x):
    """Compute 1 / (1 + exp(-x)) in 8 instructions, where ``tl.sigmoid`` takes 12.

    Those 4 extra instructions preserve denormal values of the exponential, which adding 1 loses
    again.
    """
    return 1 / (1 + tl.exp2(x * -1.4426950408889634))


@triton.jit
def activate(x, ACT: tl.constexpr, EXACT: tl.constexpr = True):
    """Compute ``act(x)`` and its derivative.

    Unless ``EXACT``, gelu's Phi has an error of up to 3e-7: it uses the tail formula 7.1.26 of
    Abramowitz and Stegun, "Handbook of Mathematical Functions", whose exponential also serves the
    derivative. ``tl.erf`` takes longer than reading and writing 16-bit values.
    """
    if ACT == "silu":
        s = sigmoid(x)
        y = x * s
        slope = s + y * (1 - s)
    elif ACT == "gelu_tanh":
        # 0.5 (1 + tanh z) is sigmoid(2 z), with z = sqrt(2 / pi) (x + 0.044715 x^3).
        s = sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
        y = x * s
        slope = s + y * (1 - s) * 1.5957691216057308 * (1 + 0.134145 * x * x)
    else:
        tl.static_assert(ACT == "gelu")
        bell = tl.exp2(x * x * -0.7213475204444817)  # exp(-x^2 / 2)
        if EXACT:
            s = 0.5 * (1 + tl.erf(x * 0.7071067811865476))
        else:
            t = 1 / (1 + 0.2316418882663604 * tl.abs(x))
            tail = 0.5307027145 * t - 0.7265760135
            tail = tail * t + 0.7107068705
            tail = tail * t - 0.142248368
            tail = (tail * t + 0.127414796) * t * bell
            s = tl.where(x < 0, tail, 1 - tail)
        y = x * s
        slope = s + x * 0.3989422804014327 * bell
    return y, slope


@triton.jit
def _row_and_column(n_columns, ONE_ROW: tl.constexpr, BLOCK: tl.constexpr):
    """Return a program's row and first column; a division delays the reads by up to 0.12 us."""
    if ONE_ROW:
        return tl.full([], 0, tl.int64), tl.program_id(0).to(tl.int64) * BLOCK
    n_blocks = (n_columns - 1) // BLOCK + 1  # the sum in tl.cdiv overflows just below 2^31 columns
    i_n = (tl.program_id(0) // n_blocks).to(tl.int64)
    return i_n, (tl.program_id(0) % n_blocks).to(tl.int64) * BLOCK


@triton.jit
def _gated_activation_forward_kernel(
    gate_ptr,
    up_ptr,
    y_ptr,
    n_columns,
    gate_stride,
    up_stride,
    ONE_ROW: tl.constexpr,
    PACKED: tl.constexpr,
    ACT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_n, i_c = _row_and_column(n_columns, ONE_ROW, BLOCK)
    if PACKED:
        up_ptr = gate_ptr + n_columns
    o_c = tl.arange(0, BLOCK)
    m_c = o_c < n_columns - i_c
    b_gate = tl.load(gate_ptr + i_n * gate_stride + i_c + o_c, mask=m_c, other=0.0)
    b_up = tl.load(up_ptr + i_n * up_stride + i_c + o_c, mask=m_c, other=0.0)
    b_s, _ = activate(b_gate.to(tl.float32), ACT, gate_ptr.dtype.element_ty == tl.float32)
    tl.store(y_ptr + i_n * n_columns + i_c + o_c, b_s * b_up.to(tl.float32), mask=m_c)


_launch_forward = launcher(_gated_activation_forward_kernel)


@triton.jit
def _gated_activation_backward_kernel(
    dy_ptr,
    gate_ptr,
    up_ptr,
    dgate_ptr,
    dup_ptr,
    n_columns,
    dy_stride,
    gate_stride,
    up_stride,
    ONE_ROW: tl.constexpr,
    PACKED: tl.constexpr,
    ACT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_n, i_c = _row_and_column(n_columns, ONE_ROW, BLOCK)
    d_stride = tl.cast(n_columns, tl.int64)
    if PACKED:
        up_ptr = gate_ptr + n_columns
        dup_ptr = dgate_ptr + n_columns
        d_stride = d_stride * 2
    o_c = tl.arange(0, BLOCK)
    m_c = o_c < n_columns - i_c
    b_dy = tl.load(dy_ptr + i_n * dy_stride + i_c + o_c, mask=m_c, other=0.0).to(tl.float32)
    b_gate = tl.load(gate_ptr + i_n * gate_stride + i_c + o_c, mask=m_c, other=0.0)
    b_up = tl.load(up_ptr + i_n * up_stride + i_c + o_c, mask=m_c, other=0.0).to(tl.float32)
    exact: tl.constexpr = gate_ptr.dtype.element_ty == tl.float32
    b_s, b_slope = activate(b_gate.to(tl.float32), ACT, exact)
    tl.store(dgate_ptr + i_n * d_stride + i_c + o_c, b_dy * b_up * b_slope, mask=m_c)
    tl.store(dup_ptr + i_n * d_stride + i_c + o_c, b_dy * b_s, mask=m_c)


_launch_backward = launcher(_gated_activation_backward_kernel)


def _tiles(*_: Any) -> list[Tile]:
    return TILES


_FORWARD = Tunable("gated.forward", (_gated_activation_forward_kernel,), _tiles)
_BACKWARD = Tunable("gated.backward", (_gated_activation_backward_kernel,), _tiles)


def _key(gate: Tensor, packed: bool, act: str, n: int) -> Key:
    # A contiguous tensor is one long row. For packed halves the width says how much blocks overlap.
    width = gate.shape[-1] if packed else None
    return gate.get_device(), gate.dtype, width, act, size_class(n // 1024)


@replayed
def _forward(gate: Tensor, up: Tensor | None, act: str) -> Tensor:
    packed = up is None
    width = gate.shape[-1] // 2 if packed else gate.shape[-1]
    if packed:
        y = torch.empty(*gate.shape[:-1], width, dtype=gate.dtype, device=gate.device)
    else:
        y = blank(gate)
    if not y.numel():
        return y
    key = _key(gate, packed, act, y.numel())
    block, warps = _FORWARD.tile(key, _forward, gate, up, act)
    gate, gate_stride = rows_of(gate)
    up_stride = gate_stride
    if up is not None:
        up, up_stride = rows_of(up)
        if y.numel() != width and gate_stride == up_stride == width:
            width = y.numel()  # one long row, so that no block end is wasted
    with on_device(gate):
        _launch_forward(
            (y.numel() // width * cdiv(width, block),),
            gate,
            up,
            y,
            width,
            gate_stride,
            up_stride,
            ONE_ROW=y.numel() == width,
            PACKED=packed,
            ACT=act,
            BLOCK=block,
            num_warps=warps,
        )
    return y


@replayed
def _backward(
    dy: Tensor, gate: Tensor, up: Tensor | None, act: str
) -> tuple[Tensor, Tensor | None]:
    dgate = blank(gate)
    dup = None if up is None else blank(up)
    if not dy.numel():
        return dgate, dup
    key = _key(gate, up is None, act, dy.numel())
    block, warps = _BACKWARD.tile(key, _backward, dy, gate, up, act)
    width = dy.shape[-1]
    n_rows = dy.numel() // width
    (gate, gate_stride), (dy, dy_stride) = rows_of(gate), rows_of(dy)
    up_stride = gate_stride
    if up is not None:
        up, up_stride = rows_of(up)
        if gate_stride == up_stride == dy_stride == width:
            width, n_rows = dy.numel(), 1  # one long row, so that no block end is wasted
    with on_device(gate):
        _launch_backward(
            (n_rows * cdiv(width, block),),
            dy,
            gate,
            up,
            dgate,
            dup,
            width,
            dy_stride,
            gate_stride,
            up_stride,
            ONE_ROW=n_rows == 1,
            PACKED=up is None,
            ACT=act,
            BLOCK=block,
            num_warps=warps,
        )
    return dgate, dup


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor | None, act: str) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.act = act
        return _forward(gate, up, act)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        return *_backward(dy, gate, up, ctx.act), None


def gated(gate: Tensor, up: Tensor | None, act: str) -> Tensor:
    """Compute ``act(gate) * up`` with Triton; ``act`` is silu, gelu or gelu_tanh."""
    return applied(_Gated, gate, up, act)


def inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    """Draw random gate and up of ``rows`` x ``dim``, or the two packed if the case says so."""
    rows, dim, packed = case.sizes["rows"], case.sizes["dim"], case.sizes.get("packed", False)
    make = {"device": device, "dtype": dtype}
    gate = random_tensor(rows, 2 * dim if packed else dim, seed=seed, **make)
    return {
        "gate": gate,
        "up": None if packed else random_tensor(rows, dim, seed=seed + 1, **make),
    }


def cost(gate: Tensor, up: Tensor | None = None, **_: Any) -> Cost:
    """Count two tensors read and one written forward, three read and two written backward."""
    total = tensor_bytes(gate, up)
    n = (gate.numel() + (up.numel() if up is not None else 0)) // 2
    return Cost(Work(total + total // 2, 5 * n), Work(2 * total + total // 2, 12 * n))


def sizes(random: Random) -> dict[str, int]:
    """Draw small random sizes, packed or not."""
    return {
        "rows": random.randint(0, 20),
        "dim": random.randint(1, 500),
        "packed": random.randint(0, 1),
    }


# A contiguous tensor that is not packed is treated as one row of all elements.
HUGE = (
    Huge({"rows": (1 << 20) + 3, "dim": 1024, "packed": True}),
    Huge({"rows": (1 << 21) + 3, "dim": 1024}),
)
CASES = (
    Case("63x100", {"rows": 63, "dim": 100}),
    Case("1x1", {"rows": 1, "dim": 1}),
    Case("3x5000", {"rows": 3, "dim": 5000}),
    Case("0x64", {"rows": 0, "dim": 64}),
    Case("63x100 packed", {"rows": 63, "dim": 100, "packed": True}),
    Case("3x5000 packed", {"rows": 3, "dim": 5000, "packed": True}),
    Case("16384x2048", {"rows": 16384, "dim": 2048}, bench=True),
    Case("16384x6912", {"rows": 16384, "dim": 6912}, bench=True),
    Case("2048x2048", {"rows": 2048, "dim": 2048}, bench=True),
    Case("16384x6912 packed", {"rows": 16384, "dim": 6912, "packed": True}, bench=True),
)
