"""Names by which the HYDRA guide calls functions of this library."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kernels.core import triton_helpers
from kernels.core.dispatch import choose, chosen
from kernels.core.operator import OPS, Mistake, Unavailable
from kernels.core.status import status

# The guide's backends, and the implementations of ``attention`` for each.
BACKENDS = {
    "auto": ("auto",),
    "flash": ("flash4", "flash3", "flash2"),
    "xformers": ("xformers",),
    "sdpa": ("sdpa",),
}


def get_kernel_status() -> dict[str, Any]:
    """Return a report: if Triton is available and used, its version, and each operator's choice."""
    reports = status()
    with_triton = [name for name, op in OPS.items() if "triton" in op.implementations]
    available = any("triton" in reports[name].available for name in with_triton)
    choices = chosen()
    return {
        "triton_available": available,
        "triton_version": triton_helpers.triton.__version__ if triton_helpers.INSTALLED else None,
        "use_triton_kernels": available and any(choices[name] != "torch" for name in with_triton),
        "kernels": {name: report.active for name, report in reports.items()},
    }


def set_use_triton_kernels(use: bool) -> None:
    """Let every operator choose its implementation (``True``) or run in PyTorch (``False``)."""
    choose(all="auto" if use else "torch")


def set_attention_backend(backend: str) -> None:
    """Choose "auto", "flash", "xformers" or "sdpa" for ``attention``.

    Raises ``Mistake`` for another name and ``Unavailable`` where none of its kernels can run.
    """
    if backend not in BACKENDS:
        raise Mistake(f"attention: unknown backend {backend!r}; expected one of {tuple(BACKENDS)}")
    report = status()["attention"]
    for name in BACKENDS[backend]:
        if name == "auto" or name in report.available:
            choose(attention=name)
            return
    reasons = "; ".join(f"{name}: {report.unavailable[name]}" for name in BACKENDS[backend])
    raise Unavailable(f"attention: {backend!r} cannot run: {reasons}")


def flexible_attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = True) -> Tensor:
    """Return ``attention`` [B, H, S, D] of (B, H, S, D) over keys and values of fewer heads."""
    from kernels.attention import attention

    return attention(q, k, v, causal=is_causal)
