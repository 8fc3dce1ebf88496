"""RMS normalisation and rotary embedding of query and key heads in one pass.

The mathematics is that of qk_norm followed by rope. The normalised heads are not written to memory
and read again (and, in half precision, rounded) in between.
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
    tensor_bytes,
)
from kernels.core.triton_helpers import missing, no_fp64
from kernels.qk_norm import head_inputs
from kernels.rms_norm import reference as normalised
from kernels.rope import reference as rotated
from kernels.rope import table


def qk_norm_rope(
    q_BHSD: Tensor,
    k_BGSD: Tensor,
    q_weight_D: Tensor,
    k_weight_D: Tensor,
    cos_SD: Tensor,
    sin_SD: Tensor,
    eps: float = 1e-6,
    *,
    interleaved: bool = False,
    offset: int | Tensor = 0,
    impl: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Normalise, then rotate ``q_BHSD`` and ``k_BGSD``; arguments as in qk_norm and rope.

    Returns new q and k. Raises ``Mistake`` if the arguments do not fit together.
    """
    return run(
        OP, impl, q_BHSD, k_BGSD, q_weight_D, k_weight_D, cos_SD, sin_SD, eps, interleaved, offset
    )


def _check(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float,
    interleaved: bool,
    offset: int | Tensor,
) -> None:
    _qk.validate_heads("qk_norm_rope", q, k)
    _qk.validate_weights("qk_norm_rope", q, q_weight, k_weight)
    _qk.validate_table("qk_norm_rope", q, cos, sin, offset)


def reference(
    q_BHSD: Tensor,
    k_BGSD: Tensor,
    q_weight_D: Tensor,
    k_weight_D: Tensor,
    cos_SD: Tensor,
    sin_SD: Tensor,
    eps: float = 1e-6,
    interleaved: bool = False,
    offset: int | Tensor = 0,
) -> tuple[Tensor, Tensor]:
    """Compute the definition, without rounding in between."""
    wide = accumulator(q_BHSD.dtype)
    q, k = rotated(
        normalised(q_BHSD.to(wide), q_weight_D, eps),
        normalised(k_BGSD.to(wide), k_weight_D, eps),
        cos_SD,
        sin_SD,
        interleaved,
        offset,
    )
    return q.to(q_BHSD.dtype), k.to(k_BGSD.dtype)


def _triton(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float,
    interleaved: bool,
    offset: int | Tensor,
) -> tuple[Tensor, Tensor]:
    return _qk.normalise(q, k, q_weight, k_weight, eps, cos, sin, interleaved, offset)


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    size = case.sizes
    heads = head_inputs(case, device, dtype, seed)
    eps, offset = heads.pop("eps"), size.get("offset", 0)
    cos, sin = table(offset + size["length"], size["dim"], device)
    return heads | {
        "cos_SD": cos,
        "sin_SD": sin,
        "eps": eps,
        "interleaved": size.get("interleaved", False),
        "offset": torch.tensor(offset, device=device) if size.get("on_device") else offset,
    }


def _cost(
    q_BHSD: Tensor,
    k_BGSD: Tensor,
    q_weight_D: Tensor,
    k_weight_D: Tensor,
    cos_SD: Tensor,
    **_: Any,
) -> Cost:
    heads, weights = tensor_bytes(q_BHSD, k_BGSD), tensor_bytes(q_weight_D, k_weight_D)
    table_bytes = 2 * q_BHSD.shape[2] * (q_BHSD.shape[3] // 2) * cos_SD.element_size()
    n = q_BHSD.numel() + k_BGSD.numel()
    return Cost(
        Work(2 * heads + weights + table_bytes, 7 * n),
        Work(3 * heads + 2 * weights + table_bytes, 15 * n),
    )


def _sizes(random: Random) -> dict[str, Any]:
    return _qk.random_sizes(
        random,
        eps=0.01,
        offset=random.randint(0, 5),
        on_device=random.random() < 0.5,
        interleaved=random.random() < 0.5,
    )


OP = Operator(
    name="qk_norm_rope",
    function=qk_norm_rope,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(_triton, missing, no_fp64, replayed=True),
        "torch": Implementation(reference),
    },
    fused_by_compiler=_qk.is_fused_by_compiler,
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    huge=_qk.HUGE,
    gradients=("q_BHSD", "k_BGSD", "q_weight_D", "k_weight_D"),
    cases=(
        Case("B2 S23 H6/3 D20", _qk.sizes(2, 23, 6, 3, 20)),
        Case("B1 S1 H1/1 D2", _qk.sizes(1, 1, 1, 1, 2, eps=0.1)),
        Case("B3 S7 H5/1 D100 interleaved", _qk.sizes(3, 7, 5, 1, 100, interleaved=True)),
        Case("B3 S1 H20/4 D64 decode", _qk.sizes(3, 1, 20, 4, 64, offset=100, on_device=True)),
        Case("B0 S5 H2/1 D8", _qk.sizes(0, 5, 2, 1, 8)),
        Case("B4 S4096 H32/8 D128", _qk.sizes(4, 4096, 32, 8, 128), bench=True),
        Case("B8 S2048 H12/12 D64", _qk.sizes(8, 2048, 12, 12, 64), bench=True),
    ),
)
