"""Rates of the 8-bit matrix units: large products of random codes in torch's own kernels.

FP8 (E4M3, one scale per tensor) accumulates as fast as the hardware can; ``quantized_matmul``,
which keeps more bits of its sums, may be slower. An operation is one multiplication or one
addition, as for other dtypes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.core.operator import Work
from kernels.measure.timing import Ceilings, ceilings, gpu_us
from kernels.quantized_matmul import OP, quantize


@dataclass(frozen=True)
class Unit:
    """Kind of matrix unit: who uses it in ``quantized_matmul``, and a product for it."""

    implementation: str
    schemes: tuple[str, ...]
    product: Callable[[int, str], Callable[[], Tensor]]


def _codes(side: int, device: str, scheme: str) -> Tensor:
    return quantize(torch.randn(side, side, device=device), scheme)[0]


def _float8(side: int, device: str) -> Callable[[], Tensor]:
    a, b = (_codes(side, device, "fp8_tensor") for _ in range(2))
    scale = torch.ones((), device=device)
    scales: dict[str, Any] = {"scale_a": scale, "scale_b": scale}
    return lambda: torch._scaled_mm(a, b.T, **scales, out_dtype=torch.bfloat16, use_fast_accum=True)


def _int8(side: int, device: str) -> Callable[[], Tensor]:
    a, b = (_codes(side, device, "int8_dynamic") for _ in range(2))
    return lambda: torch._int_mm(a, b.T)


UNITS = {
    "float8": Unit("scaled_mm", ("fp8_tensor", "fp8_row"), _float8),
    "int8": Unit("int_mm", ("int8_dynamic",), _int8),
}


def unit_of(scheme: str, device_type: str) -> str:
    """Return the units in which a scheme of ``quantized_matmul`` multiplies; empty if none."""
    return next((name for name, unit in UNITS.items() if scheme in unit.schemes
                 and OP.unavailable(unit.implementation, device_type) is None), "")  # fmt: skip


@functools.cache
def measured(name: str, device: str) -> float | str:
    """Measure operations per second of those units, once per device; return a reason if it fails.

    Matrices of 8,192 rows on a GPU; of 256 on the CPU, where torch may multiply in a plain loop.
    """
    unit, device_type = UNITS[name], torch.device(device).type
    if missing := OP.unavailable(unit.implementation, device_type):
        return missing
    side, repeats = (8192, 10) if device_type == "cuda" else (256, 5)
    try:
        return 2e6 * side**3 / gpu_us(unit.product(side, device), repeats=repeats, device=device)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # a device that torch has no kernel for
        return f"torch's product failed: {(str(error).splitlines() or ['no message'])[0]}"


def ceilings_for(work: Work, device: str, dtype: torch.dtype) -> Ceilings:
    """Return the ceilings for an operator's work: of 8-bit units where they exist and suit it."""
    base = ceilings(device, dtype)
    rate = measured(work.unit, device) if work.unit else ""
    if isinstance(rate, str):
        return base
    return Ceilings(base.bytes_per_s, rate, work.unit)
