"""Generations of NVIDIA GPUs and the dtypes that each computes well, as a table.

By compute capability, from the CUDA C++ Programming Guide (tables of technical specifications): the
number formats of the matrix units, and the limits of one block of threads. The training precision
is BF16 from Ampere on (FP32's range, so that no loss has to be scaled), FP16 for Volta and Turing,
and FP32 before, where FP16 is missing or not in matrix units.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One generation: from its compute capability up to that of the next."""

    name: str
    capability: tuple[int, int]
    fp16: bool  # these four: in the matrix units
    bf16: bool
    tf32: bool
    fp8: bool
    shared_bytes: int  # for one block, opt-in included
    threads_per_block: int = 1024

    @property
    def precision(self) -> torch.dtype:
        """Fastest dtype that is safe to train in: BF16, else FP16, else FP32."""
        if self.bf16:
            return torch.bfloat16
        return torch.float16 if self.fp16 else torch.float32

    @property
    def scales_loss(self) -> bool:
        """True if training in ``precision`` needs a scaled loss: FP16 loses small gradients."""
        return self.precision == torch.float16


def _row(name: str, capability: tuple[int, int], numbers: str, shared_kib: int) -> Generation:
    has = numbers.split()
    return Generation(
        name=name,
        capability=capability,
        fp16="fp16" in has,
        bf16="bf16" in has,
        tf32="tf32" in has,
        fp8="fp8" in has,
        shared_bytes=shared_kib << 10,
    )


GENERATIONS = (
    _row("older than Maxwell", (0, 0), "", 48),
    _row("Maxwell", (5, 0), "", 48),
    _row("Pascal", (6, 0), "", 48),
    _row("Volta", (7, 0), "fp16", 96),
    _row("Turing", (7, 5), "fp16", 64),
    _row("Ampere, data centre", (8, 0), "fp16 bf16 tf32", 163),
    _row("Ampere", (8, 6), "fp16 bf16 tf32", 99),
    _row("Ada", (8, 9), "fp16 bf16 tf32 fp8", 99),
    _row("Hopper", (9, 0), "fp16 bf16 tf32 fp8", 227),
    _row("Blackwell, data centre", (10, 0), "fp16 bf16 tf32 fp8", 227),
    _row("Blackwell", (12, 0), "fp16 bf16 tf32 fp8", 99),
)


def generation(capability: tuple[int, int]) -> Generation:
    """Return the generation of a compute capability; a newer one counts as the last known."""
    return next(row for row in reversed(GENERATIONS) if row.capability <= capability)
