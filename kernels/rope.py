"""Rotary position embedding of queries and keys, in one launch.

Each pair (a, b) of a head's elements at position p is rotated by an angle t from a table:

    a' = a cos t - b sin t,    b' = b cos t + a sin t

Su et al., "RoFormer", 2021 (arXiv 2104.09864), equation 34. The pairs are (i, i + D/2) ("half
rotation", as in GPT-NeoX and Llama) or (2i, 2i + 1) (``interleaved``, as in the paper). The
gradient is the rotation by the negative angle. Arithmetic is in FP32.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from kernels import _qk
from kernels.core.dispatch import run
from kernels.core.operator import (
    Case,
    Cost,
    Implementation,
    Inputs,
    Operator,
    Work,
    accumulator,
    always,
    tensor_bytes,
)
from kernels.core.triton_helpers import missing, no_fp64
from kernels.measure import peers


def rope(
    q_BHSD: Tensor,
    k_BGSD: Tensor,
    cos_SD: Tensor,
    sin_SD: Tensor,
    *,
    interleaved: bool = False,
    offset: int | Tensor = 0,
    impl: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by their positions.

    ``q_BHSD`` and ``k_BGSD`` have one dtype and any strides; H and G may differ. ``cos_SD`` and
    ``sin_SD`` [N, D/2] or [N, D]: the table for positions 0 to N - 1. A table of width D holds
    every angle twice, in the layout of the pairs; one of each two is read. The tables get no
    gradient. Element s of the sequence is at position ``offset + s``; an integer tensor on the
    device, [] or [B], keeps decoding free of host synchronisation: positions outside the table give
    NaN. Returns new q and k. Raises ``Mistake`` if the arguments do not fit together.
    """
    return run(OP, impl, q_BHSD, k_BGSD, cos_SD, sin_SD, interleaved, offset)


def _check(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, offset: int | Tensor
) -> None:
    _qk.validate_heads("rope", q, k)
    _qk.validate_table("rope", q, cos, sin, offset)


def reference(
    q_BHSD: Tensor,
    k_BGSD: Tensor,
    cos_SD: Tensor,
    sin_SD: Tensor,
    interleaved: bool = False,
    offset: int | Tensor = 0,
) -> tuple[Tensor, Tensor]:
    """Compute the definition."""
    length, dim = q_BHSD.shape[2:]
    wide = accumulator(q_BHSD.dtype)
    if cos_SD.shape[1] == dim:
        one_of_two = slice(None, None, 2) if interleaved else slice(dim // 2)
        cos_SD, sin_SD = cos_SD[:, one_of_two], sin_SD[:, one_of_two]
    if isinstance(offset, Tensor):
        position = offset.reshape(-1, 1) + torch.arange(length, device=offset.device)
        inside = ((position >= 0) & (position < cos_SD.shape[0]))[:, None, :, None]
        position = position.clamp(0, cos_SD.shape[0] - 1)
        cos = torch.where(inside, cos_SD[position][:, None].to(wide), torch.nan)
        sin = torch.where(inside, sin_SD[position][:, None].to(wide), torch.nan)
    else:
        cos = cos_SD[offset : offset + length].to(wide)
        sin = sin_SD[offset : offset + length].to(wide)
    return _rotate(q_BHSD, cos, sin, interleaved), _rotate(k_BGSD, cos, sin, interleaved)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    wide = x.to(cos.dtype)
    a, b = (wide[..., ::2], wide[..., 1::2]) if interleaved else wide.chunk(2, dim=-1)
    turned = [a * cos - b * sin, b * cos + a * sin]
    by_tokens = torch.compiler.is_compiling() and x.is_cuda
    if by_tokens:
        # Attention's output has the order of its queries, and projections read it by tokens.
        # Inductor writes them in that order at no cost; attention on a CPU would copy them.
        turned = [t.transpose(1, 2) for t in turned]
    y = torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)
    return (y.transpose(1, 2) if by_tokens else y).to(x.dtype)


def table(
    length: int, dim: int, device: torch.device, base: float = 10000.0
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [length, dim / 2] in FP32, of angles computed in FP64."""
    frequency = base ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)
    angle = torch.arange(length, dtype=torch.float64, device=device)[:, None] * frequency
    return angle.cos().float(), angle.sin().float()


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    size = case.sizes
    offset = size.get("offset", 0)
    cos, sin = table(offset + size["length"] + 1, size["dim"], device)
    if size.get("full"):
        cos, sin = (
            torch.stack((t, t), -1).flatten(-2) if size.get("interleaved") else torch.cat((t, t), 1)
            for t in (cos, sin)
        )
    q, k = _qk.random_heads(case, device, dtype, seed)
    return {
        "q_BHSD": q,
        "k_BGSD": k,
        "cos_SD": cos,
        "sin_SD": sin,
        "interleaved": size.get("interleaved", False),
        "offset": torch.tensor(offset, device=device) if size.get("on_device") else offset,
    }


def _cost(q_BHSD: Tensor, k_BGSD: Tensor, cos_SD: Tensor, **_: Any) -> Cost:
    table_bytes = 2 * q_BHSD.shape[2] * (q_BHSD.shape[3] // 2) * cos_SD.element_size()
    work = Work(
        2 * tensor_bytes(q_BHSD, k_BGSD) + table_bytes, 3 * (q_BHSD.numel() + k_BGSD.numel())
    )
    return Cost(work, work)


def _sizes(random: Random) -> dict[str, Any]:
    return _qk.random_sizes(
        random,
        offset=random.randint(0, 5),
        on_device=random.random() < 0.5,
        interleaved=random.random() < 0.5,
        full=random.random() < 0.5,
    )


OP = Operator(
    name="rope",
    function=rope,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(_qk.rotate, missing, no_fp64, replayed=True),
        "torch": Implementation(reference),
        **peers.options("rope"),
    },
    fused_by_compiler=always,
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    huge=_qk.HUGE,
    gradients=("q_BHSD", "k_BGSD"),
    cases=(
        Case("B2 S23 H6/3 D20", _qk.sizes(2, 23, 6, 3, 20)),
        Case("B1 S1 H1/1 D2", _qk.sizes(1, 1, 1, 1, 2)),
        Case("B2 S33 H3/1 D100 full table", _qk.sizes(2, 33, 3, 1, 100, full=True)),
        Case("B2 S23 H6/2 D20 interleaved", _qk.sizes(2, 23, 6, 2, 20, interleaved=True)),
        Case(
            "B1 S7 H5/5 D64 interleaved full table",
            _qk.sizes(1, 7, 5, 5, 64, interleaved=True, full=True),
        ),
        Case("B3 S1 H20/4 D64 decode", _qk.sizes(3, 1, 20, 4, 64, offset=100, on_device=True)),
        Case("B0 S5 H2/1 D8", _qk.sizes(0, 5, 2, 1, 8)),
        Case("B4 S4096 H32/8 D128", _qk.sizes(4, 4096, 32, 8, 128), bench=True),
        Case("B8 S2048 H12/12 D64", _qk.sizes(8, 2048, 12, 12, 64), bench=True),
        Case("B4 S512 H12/12 D64", _qk.sizes(4, 512, 12, 12, 64), bench=True),
        Case(
            "B4 S4096 H32/8 D128 interleaved",
            _qk.sizes(4, 4096, 32, 8, 128, interleaved=True),
            bench=True,
        ),
        Case(
            "B32 S1 H32/8 D128 decode",
            _qk.sizes(32, 1, 32, 8, 128, offset=4095, on_device=True),
            bench=True,
        ),
    ),
)
