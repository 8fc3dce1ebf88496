"""Fourier mixing: a low-pass filter along the sequence, the features, or both.

    y = irfft(h rfft(x)),    h(f) = 1 for f <= cutoff * n, else damping;  n elements, f = 0 ... n/2

Mixing tokens by Fourier transforms: Lee-Thorp et al., "FNet", 2021 (arXiv 2105.03824); a filter in
the frequency domain: Rao et al. 2021 (arXiv 2107.00645). The filter is linear, so y = C x with the
circulant matrix C of its impulse response c = irfft(h). With ``causal`` only the part that looks
back is kept along the sequence: y_t = sum over s <= t of c[t - s] x_s (a zero-padded transform).

``torch`` transforms in FP32. ``matmul`` multiplies by the matrix, also in half precision, which is
faster on a GPU's matrix units for short sequences. The gradient is the transposed filter.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from kernels.core.dispatch import run
from kernels.core.operator import (
    Case,
    Cost,
    Implementation,
    Inputs,
    Mistake,
    Operator,
    Work,
    accumulator,
    floating,
    random_tensor,
    tensor_bytes,
    tensors_kept,
    traced_as_constant,
    without_autocast,
)

AXES = ("sequence", "features", "both")
LONGEST = 4096  # elements from which the transform moves less than the matrix computes


def fourier_mix(
    x_BTD: Tensor,
    *,
    cutoff: float = 0.25,
    damping: float = 0.1,
    over: str = "sequence",
    causal: bool = False,
    impl: str | None = None,
) -> Tensor:
    """Filter ``x_BTD`` [..., T, D]; returns its shape and dtype.

    ``cutoff`` is a fraction of T (or D), from 0 to 1; ``damping`` the factor for higher
    frequencies. ``over``: sequence, features or both; ``causal`` concerns the sequence alone.
    ``impl``: auto, torch or matmul. Raises ``Mistake`` for arguments out of range.
    """
    floating("fourier_mix", x=x_BTD)
    if x_BTD.dim() < 2:
        raise Mistake(f"fourier_mix: x must be [..., T, D], but has shape {tuple(x_BTD.shape)}")
    if not 0 <= cutoff <= 1:
        raise Mistake(f"fourier_mix: cutoff must be a fraction from 0 to 1, but is {cutoff}")
    if over not in AXES:
        raise Mistake(f"fourier_mix: over must be one of {AXES}, not {over!r}")
    return run(OP, impl, x_BTD, cutoff, damping, over, causal)


def reference(
    x_BTD: Tensor,
    cutoff: float = 0.25,
    damping: float = 0.1,
    over: str = "sequence",
    causal: bool = False,
) -> Tensor:
    """Compute the definition, by transforms."""
    if not x_BTD.numel():
        return x_BTD.clone()
    y = x_BTD.to(accumulator(x_BTD.dtype))
    if over != "sequence":
        y = _filter(y, -1, cutoff, damping, causal=False)
    if over != "features":
        y = _filter(y, -2, cutoff, damping, causal)
    return y.to(x_BTD.dtype)


def _filter(x: Tensor, axis: int, cutoff: float, damping: float, causal: bool) -> Tensor:
    n = x.shape[axis]
    response = _response(n, cutoff, damping, x.device, x.dtype)
    size = n
    if causal:
        size = 2 * n
        response = torch.fft.rfft(torch.fft.irfft(response, n), size)
    if axis == -2:
        response = response[:, None]
    spectrum = torch.fft.rfft(x, size, dim=axis) * response
    return torch.fft.irfft(spectrum, size, dim=axis).narrow(axis, 0, n)


def _response(
    n: int, cutoff: float, damping: float, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Return h at the n // 2 + 1 frequencies of a real transform."""
    frequency = torch.arange(n // 2 + 1, device=device)
    damped = torch.full(frequency.shape, damping, device=device, dtype=dtype)
    return damped.masked_fill(frequency <= cutoff * n, 1.0)


def _matmul(x: Tensor, cutoff: float, damping: float, over: str, causal: bool) -> Tensor:
    device, dtype = str(x.device), x.dtype
    with without_autocast(x):
        if over != "sequence":
            x = x @ _matrix(x.shape[-1], cutoff, damping, False, device, dtype).T
        if over != "features":
            x = _matrix(x.shape[-2], cutoff, damping, causal, device, dtype) @ x
    return x


@traced_as_constant
def _matrix(
    n: int, cutoff: float, damping: float, causal: bool, device: str, dtype: torch.dtype
) -> Tensor:
    return _matrix_once(n, cutoff, damping, causal, device, dtype)


@tensors_kept(16)
def _matrix_once(
    n: int, cutoff: float, damping: float, causal: bool, device: str, dtype: torch.dtype
) -> Tensor:
    """Return C [n, n], computed in FP64 and rounded once."""
    cpu = torch.device("cpu")
    impulse = torch.fft.irfft(_response(n, cutoff, damping, cpu, torch.float64), n)
    step = torch.arange(n, device=cpu)
    back = step[:, None] - step
    matrix = impulse[back % n]
    if causal:
        matrix = matrix.masked_fill(back < 0, 0)
    return matrix.to(device=device, dtype=dtype)


def _refuses(x: Tensor, cutoff: float, damping: float, over: str, causal: bool) -> str | None:
    return None if x.numel() else "does not support empty tensors"


def _avoid(x: Tensor, cutoff: float, damping: float, over: str, causal: bool) -> str | None:
    if not x.is_cuda:
        return "is faster only on the matrix units of a GPU"
    n = max(x.shape[-2] if over != "features" else 0, x.shape[-1] if over != "sequence" else 0)
    return f"is faster only up to {LONGEST} elements, not for {n}" if n > LONGEST else None


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    size = case.sizes
    shape = (size["batch"], size["length"], size["dim"])
    return {
        "x_BTD": random_tensor(*shape, device=device, dtype=dtype, seed=seed),
        "cutoff": size.get("cutoff", 0.25),
        "damping": 0.1,
        "over": size.get("over", "sequence"),
        "causal": size.get("causal", False),
    }


def _cost(x_BTD: Tensor, cutoff: float, damping: float, over: str, causal: bool) -> Cost:
    # A transform of n real numbers takes about 2.5 n log2 n FLOPs, and there is one each way.
    length, dim = x_BTD.shape[-2:]
    flops = 0
    if over != "features":
        flops += 5 * x_BTD.numel() * max(length * (2 if causal else 1), 1).bit_length()
    if over != "sequence":
        flops += 5 * x_BTD.numel() * max(dim, 1).bit_length()
    work = Work(2 * tensor_bytes(x_BTD), flops)
    return Cost(work, work)


def _size(batch: int, length: int, dim: int, **more: Any) -> dict[str, Any]:
    return {"batch": batch, "length": length, "dim": dim} | more


def _sizes(random: Random) -> dict[str, Any]:
    return _size(
        random.randint(1, 3),
        random.randint(1, 70),
        random.randint(1, 50),
        cutoff=random.choice((0.0, 0.1, 0.25, 0.5, 1.0)),
        over=random.choice(AXES),
        causal=random.random() < 0.5,
    )


OP = Operator(
    name="fourier_mix",
    function=fourier_mix,
    reference=reference,
    implementations={
        "matmul": Implementation(_matmul, refuses=_refuses, avoid=_avoid),
        "torch": Implementation(reference),
    },
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    gradients=("x_BTD",),
    cases=(
        Case("B2 T63 D20", _size(2, 63, 20)),
        Case("B1 T1 D1", _size(1, 1, 1)),
        Case("B2 T100 D7 causal", _size(2, 100, 7, causal=True)),
        Case("B2 T63 D30 both, causal", _size(2, 63, 30, over="both", causal=True)),
        Case("B3 T5 D1000 features", _size(3, 5, 1000, over="features")),
        Case("B0 T5 D8", _size(0, 5, 8)),
        Case("B8 T1024 D768", _size(8, 1024, 768), bench=True),
        Case("B8 T2048 D768 causal", _size(8, 2048, 768, causal=True), bench=True),
        Case("B2 T8192 D1024", _size(2, 8192, 1024), bench=True),
    ),
)
