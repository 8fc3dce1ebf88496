"""Process-wide flags of torch and Python that a user's model file may set."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.backends import cuda, cudnn, mha, mkldnn
from torch.utils import _device, deterministic

from workbench.runner.instruments import timing

_Switch = tuple[Callable[[], Any], Callable[[Any], object]]  # getter and setter

# Backends among which torch's own attention chooses: getter and setter.
SDP: dict[str, tuple[Callable[[], bool], Callable[[bool], None]]] = {
    "flash": (cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
    "mem_efficient": (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
    "cudnn": (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
    "math": (cuda.math_sdp_enabled, cuda.enable_math_sdp),
}


def _attribute(owner: Any, name: str) -> _Switch:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _autocast(device_type: str) -> tuple[_Switch, _Switch]:
    """Return the switches of autocast on a kind of device: if it is on, and its dtype."""
    return (
        (
            lambda: torch.is_autocast_enabled(device_type),
            lambda on: torch.set_autocast_enabled(device_type, on),
        ),
        (
            lambda: torch.get_autocast_dtype(device_type),
            lambda dtype: torch.set_autocast_dtype(device_type, dtype),
        ),
    )


# In which precision products of 16-bit numbers may be summed.
_SUMS = (
    "fp16_reduced_precision_reduction",
    "bf16_reduced_precision_reduction",
    "fp16_accumulation",
)
# Torch's newer names for TF32, the general ones first: what these set otherwise than the older ones
# (below) know, makes asking the latter an error.
_FP32 = [
    _attribute(owner, "fp32_precision")
    for owner in (
        *(torch.backends, cuda.matmul, cudnn, cudnn.conv, cudnn.rnn),
        *(mkldnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn),
    )
]
_ALL: tuple[_Switch, ...] = (
    *_FP32,
    (torch.get_default_dtype, torch.set_default_dtype),
    # Asked as it is kept: the CPU may be a default too, which has a hand in every call of torch.
    (lambda: _device.CURRENT_DEVICE, torch.set_default_device),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    *(_attribute(cuda.matmul, f"allow_{name}") for name in _SUMS),
    (cuda.fp16_bf16_reduction_math_sdp_allowed, cuda.allow_fp16_bf16_reduction_math_sdp),
    (cuda.preferred_blas_library, cuda.preferred_blas_library),
    (cuda.preferred_linalg_library, cuda.preferred_linalg_library),
    *(_attribute(mkldnn, name) for name in ("enabled", "deterministic")),
    _attribute(deterministic, "fill_uninitialized_memory"),
    (mha.get_fastpath_enabled, mha.set_fastpath_enabled),
    *(switch for device_type in ("cpu", "cuda") for switch in _autocast(device_type)),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    *(_attribute(cudnn, name) for name in ("enabled", "benchmark", "deterministic", "allow_tf32")),
    *SDP.values(),
    (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (sys.getswitchinterval, sys.setswitchinterval),
)


def values() -> list[str]:
    """Return the present values of all flags, as text."""
    return [_text(get) for get, _ in _ALL]


@contextlib.contextmanager
def put_back() -> Iterator[None]:
    """Restore all flags on exit."""
    before = [get() for get, _ in _ALL]
    try:
        yield
    finally:
        timing.restore_clocks()
        for (get, put), value in zip(_ALL, before, strict=True):
            if _differs(get, value):
                put(value)


def _text(get: Callable[[], Any]) -> str:
    try:
        return str(get())
    except RuntimeError as error:  # see ``_differs``
        return str(error)


def _differs(get: Callable[[], Any], value: Any) -> bool:
    try:
        return bool(get() != value)
    except RuntimeError:  # set by torch's other name, to a value that this name cannot express
        return True
