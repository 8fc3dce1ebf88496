"""RMS normalisation of every head of queries and keys, in one launch.

    q' = q / sqrt(mean(q^2) + eps) * q_weight,    k' likewise, means over the head dimension

Henry et al., "Query-Key Normalization for Transformers", 2020 (arXiv 2010.04245), with the root
mean square norm and learned weights of current models (Dehghani et al. 2023, arXiv 2302.05442).
Gradients as in rms_norm; the weights' sum over batch, heads and sequence. Arithmetic is in FP32.
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
    random_tensor,
    tensor_bytes,
)
from kernels.core.triton_helpers import missing, no_fp64
from kernels.rms_norm import reference as normalised


def qk_norm(
    q_BHSD: Tensor,
    k_BGSD: Tensor,
    q_weight_D: Tensor,
    k_weight_D: Tensor,
    eps: float = 1e-6,
    *,
    impl: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Normalise the heads of ``q_BHSD`` and ``k_BGSD``, of one dtype and any strides.

    The weights [D] have one dtype, which may differ from that of the heads. Returns new q and k.
    ``impl``: auto, torch or triton. Raises ``Mistake`` if shapes, dtypes or devices do not fit
    together.
    """
    return run(OP, impl, q_BHSD, k_BGSD, q_weight_D, k_weight_D, eps)


def _check(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> None:
    _qk.validate_heads("qk_norm", q, k)
    _qk.validate_weights("qk_norm", q, q_weight, k_weight)


def reference(
    q_BHSD: Tensor, k_BGSD: Tensor, q_weight_D: Tensor, k_weight_D: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Compute the definition."""
    return normalised(q_BHSD, q_weight_D, eps), normalised(k_BGSD, k_weight_D, eps)


def _refuses(q: Tensor, *_: Any) -> str | None:
    if q.shape[3] % 2:
        return f"supports only even head dimensions, not {q.shape[3]}"
    return no_fp64(q)


def head_inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    """Draw random heads, weights near 1 and eps."""
    q, k = _qk.random_heads(case, device, dtype, seed)
    dim, make = case.sizes["dim"], {"device": device, "dtype": dtype}
    return {
        "q_BHSD": q,
        "k_BGSD": k,
        "q_weight_D": 1 + random_tensor(dim, seed=seed + 2, scale=0.2, **make),
        "k_weight_D": 1 + random_tensor(dim, seed=seed + 3, scale=0.2, **make),
        "eps": case.sizes.get("eps", 1e-6),
    }


def _cost(
    q_BHSD: Tensor, k_BGSD: Tensor, q_weight_D: Tensor, k_weight_D: Tensor, eps: float
) -> Cost:
    heads, weights = tensor_bytes(q_BHSD, k_BGSD), tensor_bytes(q_weight_D, k_weight_D)
    n = q_BHSD.numel() + k_BGSD.numel()
    return Cost(Work(2 * heads + weights, 4 * n), Work(3 * heads + 2 * weights, 12 * n))


def _sizes(random: Random) -> dict[str, Any]:
    return _qk.random_sizes(
        random,
        eps=0.01,  # at dimension 2, a small eps makes gradients noise
    )


OP = Operator(
    name="qk_norm",
    function=qk_norm,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(_qk.normalise, missing, _refuses, replayed=True),
        "torch": Implementation(reference),
    },
    fused_by_compiler=_qk.is_fused_by_compiler,
    inputs=head_inputs,
    cost=_cost,
    sizes=_sizes,
    huge=_qk.HUGE,
    gradients=("q_BHSD", "k_BGSD", "q_weight_D", "k_weight_D"),
    cases=(
        Case("B2 S23 H6/3 D20", _qk.sizes(2, 23, 6, 3, 20)),
        Case("B1 S1 H1/1 D2", _qk.sizes(1, 1, 1, 1, 2, eps=0.1)),
        Case("B3 S7 H5/1 D100", _qk.sizes(3, 7, 5, 1, 100)),
        Case("B0 S5 H2/1 D8", _qk.sizes(0, 5, 2, 1, 8)),
        Case("B4 S4096 H32/8 D128", _qk.sizes(4, 4096, 32, 8, 128), bench=True),
        Case("B8 S2048 H12/12 D64", _qk.sizes(8, 2048, 12, 12, 64), bench=True),
    ),
)
