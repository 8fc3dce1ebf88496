"""Implementations that ``auto`` would use on any GPU, without having it; and attention usage.

A policy queries the operators themselves on an imagined GPU, so that nothing here repeats their
requirements. The choice for one call also depends on its shape, dtype and options;
``kernels.reasons`` reports it, and why others were skipped. The chain of attention ends in
implementations that run anywhere, so that nothing fails because an optional package or a newer GPU
is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernels import hardware
from kernels.core.dispatch import usage
from kernels.core.generations import GENERATIONS, Generation, generation
from kernels.core.operator import OPS
from kernels.core.triton_helpers import LARGE_BYTES

# Fused attention kernels, which never hold the matrix of weights. Of the others, chunked holds
# pieces of it and the rest all of it.
FUSED = frozenset(
    ("flash4", "flash3", "flash2", "sdpa_cudnn", "sdpa_flash", "sdpa_efficient")
) | frozenset(("triton", "flex", "xformers"))


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The use of a GPU: its precision, and implementations in the order that ``auto`` tries them.

    ``attention`` and ``adaptive_attention`` map each implementation to why it cannot run, or None.
    ``tile`` and ``tile_fp32`` are queries, keys, warps and stages of our own attention kernel for
    long sequences, in ``generation.precision`` and in FP32, or None where Triton cannot run.
    """

    generation: Generation
    attention: dict[str, str | None]
    adaptive_attention: dict[str, str | None]
    tile: tuple[int, int, int, int] | None
    tile_fp32: tuple[int, int, int, int] | None
    weights_budget_bytes: int  # unfused attention above this works in chunks

    def __str__(self) -> str:
        known = self.generation
        precision = str(known.precision).removeprefix("torch.")
        formats = [name for name in ("fp16", "bf16", "tf32", "fp8") if getattr(known, name)]
        chain = [name for name, why in self.attention.items() if why is None]
        return (
            f"{known.name} ({known.capability[0]}.{known.capability[1]}): trains in {precision}"
            f"{' with loss scaling' if known.scales_loss else ''}; matrix units support "
            f"{', '.join(formats) or 'no narrow format'}; {known.threads_per_block} threads and "
            f"{known.shared_bytes >> 10} KiB per block; attention can run as {', '.join(chain)}"
        )


def policy(
    capability: tuple[int, int], *, total_bytes: int = 16 << 30, head_dim: int = 64
) -> Policy:
    """Return the policy for a GPU of that compute capability and memory, present or not."""
    from kernels.attention import _flash, memory

    with hardware.imagined(capability, total_bytes) as gpu:
        able = {
            name: {
                impl_name: impl.missing("cuda")
                for impl_name, impl in OPS[name].implementations.items()
            }
            for name in ("attention", "adaptive_attention")
        }
        known, large = generation(capability), gpu.shared_bytes >= LARGE_BYTES
        tile = tile_fp32 = None
        if able["attention"]["triton"] is None:
            tile = _flash.tile(head_dim, known.precision.itemsize > 2, large, 1 << 12)
            tile_fp32 = _flash.tile(head_dim, True, large, 1 << 12)
        return Policy(
            generation=known,
            tile=tile,
            tile_fp32=tile_fp32,
            weights_budget_bytes=int(memory.BUDGET_FRACTION * total_bytes),
            **able,
        )


def policies() -> list[Policy]:
    """Return the full table: a policy for each generation."""
    return [policy(row.capability) for row in GENERATIONS]


def attention_usage(
    counted: Mapping[str, Mapping[str, int]] | None = None,
) -> dict[str, float | int | dict[str, int]]:
    """Count how attention has run, adaptive or not, since ``kernels.reset_usage``.

    ``counted``: use these counts instead. ``calls`` in total, ``by_implementation``,
    ``flash_ratio`` (the fraction of fused kernels, which hold no matrix of weights), ``chunked``
    and ``fallbacks`` (calls in chunks, and with the full matrix) and ``adaptive`` (those of the
    adaptive operator). Compiled calls count per trace.
    """
    table = usage() if counted is None else counted
    counts = dict(table.get("attention", {}))
    adaptive = table.get("adaptive_attention", {})
    for name, calls in adaptive.items():
        if name != "torch":  # "torch" calls attention, which counts it
            counts[name] = counts.get(name, 0) + calls
    calls = sum(counts.values())
    fused = sum(counts.get(name, 0) for name in FUSED)
    chunked = counts.get("chunked", 0)
    return {
        "calls": calls,
        "by_implementation": counts,
        "flash_ratio": fused / calls if calls else 0.0,
        "chunked": chunked,
        "fallbacks": calls - fused - chunked,
        "adaptive": sum(adaptive.values()),
    }
