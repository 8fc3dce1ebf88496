"""Triton, where it can be imported, and helpers that every Triton launch shares.

Kernel files import ``triton`` and ``tl`` from here, so that the library can be imported (and its
torch implementations used) where Triton does not exist.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from kernels import hardware
from kernels.core.operator import traced_as_constant, unit_stride

__all__ = [
    "DISABLED",
    "GLUON",
    "INSTALLED",
    "INTERPRETED",
    "MAX_GRID",
    "as_rows",
    "describable",
    "dot_precision",
    "gl",
    "gluon",
    "hopper",
    "l2_bytes",
    "missing",
    "no_fp64",
    "on_device",
    "power_of_two",
    "rows_of",
    "shared_bytes",
    "sm_count",
    "tl",
    "triton",
]


class _Absent:
    """Stand-in for Triton where it is missing: a module can define kernels, not launch them."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, function: Any = None, **options: Any) -> Any:
        return function or self


INSTALLED = importlib.util.find_spec("triton") is not None
if INSTALLED:
    import triton
    import triton.language as tl
else:
    triton = tl = _Absent()
# Gluon, in which groups of warps have separate tasks: in this form from 3.6 on.
GLUON = INSTALLED and tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 6)
if GLUON:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia import hopper
else:
    gluon = gl = hopper = _Absent()

# The variable that disables Triton, if one is set: ours, or the one that the HYDRA guide names.
DISABLED = next(
    (
        name
        for name in ("WORKBENCH_DISABLE_TRITON", "HYDRA_DISABLE_TRITON")
        if os.environ.get(name, "") not in ("", "0")
    ),
    "",
)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


MAX_GRID = 65535  # programs along the second and third dimension of a grid


def missing(device_type: str) -> str | None:
    """Return why Triton kernels cannot run on devices of this type; None if they can."""
    if DISABLED:
        return f"Triton is disabled by {DISABLED}"
    if not INSTALLED:
        return "Triton is not installed"
    if INTERPRETED:
        return None
    if device_type != "cuda":
        return f"Triton needs a CUDA GPU, not {device_type}"
    if not hardware.has_gpu():
        return "Triton needs a CUDA GPU, and torch finds none"
    major, minor = hardware.of("cuda").capability
    if (major, minor) < (7, 0):
        return f"Triton needs compute capability 7.0 or later, not {major}.{minor}"
    return None


def no_fp64(x: Tensor, *_: Any, **__: Any) -> str | None:
    """Refuse FP64, as most Triton kernels here do: they accumulate in FP32."""
    return "computes in FP32 and does not support FP64" if x.dtype == torch.float64 else None


def on_device(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Make ``x``'s GPU the current one, on which Triton launches; nearly free if it is."""
    if torch.compiler.is_compiling():
        return _nothing
    index = x.get_device()
    if index < 0 or index == hardware.current_gpu():
        return _nothing
    return torch.cuda.device(index)


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least ``n``."""
    return 1 << max(n - 1, 0).bit_length()


LARGE_BYTES = 160 << 10  # shared memory of data-centre GPUs; others get smaller tiles
_nothing = contextlib.nullcontext()


@traced_as_constant
def sm_count(device_index: int | None) -> int:
    """Count multiprocessors of a GPU (None: the current one), or CPU cores if interpreted."""
    gpu = _gpu(device_index)
    return hardware.of("cpu").sm_count if gpu is None else gpu.sm_count


@traced_as_constant
def l2_bytes(device_index: int | None) -> int:
    """Return the size of a GPU's L2 (None: the current one); 0 if kernels are interpreted."""
    gpu = _gpu(device_index)
    return 0 if gpu is None else gpu.l2_bytes


@traced_as_constant
def shared_bytes(device_index: int | None) -> int:
    """Return a block's maximum shared memory (None: on the current GPU); plenty elsewhere."""
    gpu = _gpu(device_index)
    return 227 << 10 if gpu is None else gpu.shared_bytes


def _gpu(index: int | None) -> hardware.Hardware | None:
    if INTERPRETED or not hardware.any_cuda():
        return None
    return hardware.of_gpu(torch.cuda.current_device() if index is None else index)


def has_large_memory(x: Tensor) -> bool:
    """Return True if x's GPU has as much shared memory as large tiles need."""
    return shared_bytes(x.device.index) >= LARGE_BYTES


@traced_as_constant
def dot_precision(exact: bool = False) -> str:
    """Return how ``tl.dot`` multiplies FP32: like torch's own products, or ``exact``.

    Exact means three TF32 products, whose error is about FP32's own, where the GPU has them:
    products in software need more registers than there are.
    """
    if not exact and hardware.product_precision() != "highest":
        return "tf32"
    gpu = _gpu(None)
    return "tf32x3" if gpu is None or gpu.tf32 else "ieee"


def as_rows(x: Tensor) -> Tensor:
    """Return ``x`` as a matrix of its last dimension's rows, each contiguous; copy if needed."""
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    return unit_stride(rows)


def rows_of(x: Tensor) -> tuple[Tensor, int]:
    """Return a tensor with the last dimension's rows of ``x``, and the distance between them."""
    if x.is_contiguous():
        return x, x.shape[-1]  # whatever its shape: a view takes as long as an allocation
    rows = as_rows(x)
    return rows, rows.stride(0)


def describable(*tensors: Tensor) -> bool:
    """Return True if kernels may read these by tensor descriptors (Hopper and later).

    Descriptors need rows that begin at multiples of 16 bytes and do not overlap: no expanded rows.
    They also need a known address: they are not used for tensors without memory, or while Dynamo
    traces or ``torch.func`` transforms.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    if not _describes(tensors[0].get_device()):
        return False
    for x in tensors:
        if type(x) not in (Tensor, Parameter) or x.stride(-1) != 1:
            return False
        steps = 0
        for stride in x.stride()[:-1]:
            if not stride:
                return False
            steps |= stride
        if (x.data_ptr() | steps * x.element_size()) & 15:
            return False
    return True


def _describes(device: int) -> bool:
    if not hasattr(tl, "make_tensor_descriptor"):  # Triton has it from 3.4 on
        return False
    return INTERPRETED or (device >= 0 and hardware.of_gpu(device).capability >= (9, 0))


def head_strides(*tensors: Tensor) -> list[int]:
    """Return the strides of samples, heads and tokens of tensors [B, H, S, D], in order."""
    strides: list[int] = []
    for x in tensors:
        strides += x.stride()[:3]
    return strides
