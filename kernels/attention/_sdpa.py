"""Torch's scaled_dot_product_attention, one backend of it at a time."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.backends import cuda
from torch.backends.cuda import (
    SDPAParams,
    can_use_cudnn_attention,
    can_use_efficient_attention,
    can_use_flash_attention,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kernels import hardware
from kernels.attention import _cudnn_gradient
from kernels.attention._masks import RECOMPUTED_ULPS, has_groups, square, trivial, visible
from kernels.core.autograd import needs_gradient
from kernels.core.operator import Implementation, traced_as_constant, unit_stride

_HALF = (torch.float16, torch.bfloat16)
_SWITCHES = {
    SDPBackend.FLASH_ATTENTION: (cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
    SDPBackend.EFFICIENT_ATTENTION: (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
    SDPBackend.CUDNN_ATTENTION: (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
    SDPBackend.MATH: (cuda.math_sdp_enabled, cuda.enable_math_sdp),
}

_switching = threading.RLock()
_repaired = _cudnn_gradient.repair()  # valid for the process while this object exists


@contextlib.contextmanager
def _only(backend: SDPBackend) -> Iterator[None]:
    """Enable only one backend, as ``sdpa_kernel(backend)``, in 3 instead of 20 us on the host.

    The switches belong to the process, so only one thread at a time may use them: two threads would
    restore each other's settings.
    """
    with _switching:
        before = [enabled() for enabled, _ in _SWITCHES.values()]
        try:
            for candidate, (_, enable) in _SWITCHES.items():
                enable(candidate == backend)
            yield
        finally:
            for (_, enable), was in zip(_SWITCHES.values(), before, strict=True):
                enable(was)


def _masking(
    q: Tensor, k: Tensor, causal: bool, window: int | None, kv_length: Tensor | None
) -> tuple[bool, Tensor | None]:
    """Return SDPA's ``is_causal`` (whose mask starts top left) and ``attn_mask``."""
    if trivial(q, causal, window, kv_length):
        return False, None
    if square(q, k, window, kv_length):
        return True, None
    return False, visible(q.shape[2], k.shape[2], q.device, causal, window, kv_length)


def _call(backend: SDPBackend | None) -> Callable[..., Tensor]:
    """Make SDPA with that backend only; with None torch chooses among the allowed ones."""

    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool,
        window: int | None,
        scale: float | None,
        kv_length: Tensor | None,
    ) -> Tensor:
        is_causal, mask = _masking(q, k, causal, window, kv_length)
        # torch may choose cuDNN, which returns no tensor at all for an empty one.
        used = SDPBackend.MATH if backend is None and _empty(q, k) else backend
        grouped = has_groups(q, k)
        if grouped and backend == SDPBackend.EFFICIENT_ATTENTION:
            # This backend has no grouped heads: it alone must copy keys and values.
            repeats = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
            grouped = False
        q, k, v = unit_stride(q), unit_stride(k), unit_stride(v)
        only = sdpa_kernel if torch.compiler.is_compiling() else _only
        with only(used) if used is not None else contextlib.nullcontext():
            return scaled_dot_product_attention(
                q, k, v, mask, is_causal=is_causal, scale=scale, enable_gqa=grouped
            )

    return call


def _flash_missing(device_type: str) -> str | None:
    return (
        None
        if device_type == "cpu"
        else hardware.needs("SDPA's flash backend", (8, 0))(device_type)
    )


def _flash_refuses(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window: int | None,
    scale: float | None,
    kv_length: Tensor | None,
) -> str | None:
    if not q.is_cuda:
        if any(x.stride(-1) != 1 for x in (q, k, v)):  # a dimension of size one may have any stride
            return "SDPA's flash backend needs heads with adjacent elements"
        return _empty(q, k)
    if q.dtype not in _HALF:
        return f"SDPA's flash backend supports only float16 and bfloat16, not {q.dtype}"
    if q.shape[-1] > 256:
        return f"SDPA's flash backend supports head dimensions up to 256, not {q.shape[-1]}"
    if not (trivial(q, causal, window, kv_length) or square(q, k, window, kv_length)):
        return (
            "SDPA's flash backend does not support a mask, which a window, kv_length or fewer "
            "queries need"
        )
    if torch.compiler.is_compiling() and 192 < q.shape[-1] <= 224 and needs_gradient(q, k, v):
        return _flash_untrained(q.device.type) or None
    return _ask(can_use_flash_attention, q, k, v, causal, window, kv_length)


@traced_as_constant
def _flash_untrained(device_type: str) -> str:
    """Return why the GPU has no backward pass for head dimensions 193 to 224; empty if it has.

    See check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120 in PyTorch's
    aten/src/ATen/native/transformers/cuda/sdp_utils.cpp. Wider ones lack it only with dropout.
    """
    capability = hardware.of(device_type).capability
    if not ((8, 6) <= capability <= (8, 9) or (12, 0) <= capability <= (12, 1)):
        return ""
    has = ".".join(map(str, capability))
    return f"SDPA's flash backend cannot train head dimensions 193 to 224 on capability {has}"


def _efficient_refuses(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window: int | None,
    scale: float | None,
    kv_length: Tensor | None,
) -> str | None:
    if q.dtype == torch.float64:
        return "SDPA's memory-efficient backend does not support float64"
    if torch.compiler.is_compiling():  # torch cannot be queried
        multiple = _efficient_multiple(q.device.type, q.dtype in _HALF)
        if q.shape[-1] % multiple:
            return (
                f"SDPA's memory-efficient backend supports only head dimensions {multiple}, "
                f"{2 * multiple}, ..., not {q.shape[-1]}"
            )
    return _ask(can_use_efficient_attention, q, k, v, causal, window, kv_length)


@traced_as_constant
def _efficient_multiple(device_type: str, half: bool) -> int:
    """Return minimum_gemm_alignment of PyTorch's sdp_utils.cpp: 16 bytes with matrix units."""
    major, _ = hardware.of(device_type).capability
    if half:
        return 8 if major >= 7 else 1
    return 4 if major >= 8 else 1


def _efficient_avoid(q: Tensor, k: Tensor, *_: Any) -> str | None:
    if q.shape[1] != k.shape[1]:
        return "SDPA's memory-efficient backend must copy the keys and values that heads share"
    return None


def _cudnn_refuses(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window: int | None,
    scale: float | None,
    kv_length: Tensor | None,
) -> str | None:
    if q.dtype not in _HALF:
        return f"SDPA's cuDNN backend supports only float16 and bfloat16, not {q.dtype}"
    if q.shape[-1] % 8 or q.shape[-1] > 128:
        return f"SDPA's cuDNN backend supports head dimensions 8, 16, ... 128, not {q.shape[-1]}"
    if not (trivial(q, causal, window, kv_length) or square(q, k, window, kv_length)):
        return "SDPA's cuDNN backend is not used with a mask, which these lengths or options need"
    if torch.compiler.is_compiling():  # torch cannot be queried
        if k.shape[2] == 1:
            return "SDPA's cuDNN backend needs more than one key"
        if torch.are_deterministic_algorithms_enabled():
            return "SDPA's cuDNN backend is not deterministic"
    return _ask(can_use_cudnn_attention, q, k, v, causal, window, kv_length)


def _empty(q: Tensor, k: Tensor) -> str | None:
    return None if q.numel() and k.numel() else "SDPA's fused backends do not support empty tensors"


def _ask(
    can_use: Callable[[SDPAParams, bool], bool],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window: int | None,
    kv_length: Tensor | None,
) -> str | None:
    """Return torch's verdict, which also depends on strides and on its build."""
    empty = _empty(q, k)
    if empty or torch.compiler.is_compiling():
        return empty
    is_causal, mask = _masking(q, k, causal, window, kv_length)
    grouped = has_groups(q, k)
    if grouped and can_use is can_use_efficient_attention:
        shape = (k.shape[0], q.shape[1], *k.shape[2:])
        k, v = k[:, :1].expand(shape), v[:, :1].expand(shape)
        grouped = False
    q, k, v = unit_stride(q), unit_stride(k), unit_stride(v)
    params = SDPAParams(q, k, v, mask, 0.0, is_causal, grouped)
    if can_use(params, False):
        return None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        can_use(params, True)
    reasons = " ".join(str(w.message).partition("(Triggered")[0].strip() for w in caught)
    return f"PyTorch rejects these inputs: {reasons.rstrip('.')}"


def _by_name_alone(*_: Any) -> str:
    return "SDPA's own choice of backend is used only if selected by name"


BACKENDS = {
    "sdpa_cudnn": Implementation(
        _call(SDPBackend.CUDNN_ATTENTION),
        hardware.needs("SDPA's cuDNN backend", (8, 0)),
        _cudnn_refuses,
    ),
    "sdpa_flash": Implementation(
        _call(SDPBackend.FLASH_ATTENTION),
        _flash_missing,
        _flash_refuses,
        stated_ulps={"cpu": 20.0},  # its exponential: pytorch/pytorch#115151
    ),
    "sdpa_efficient": Implementation(
        _call(SDPBackend.EFFICIENT_ATTENTION),
        hardware.needs("SDPA's memory-efficient backend", (5, 0)),
        _efficient_refuses,
        _efficient_avoid,
        stated_ulps=RECOMPUTED_ULPS,
    ),
    # The root of the scale is applied to q and to k: two roundings where the reference has one.
    "sdpa_math": Implementation(
        _call(SDPBackend.MATH), stated_ulps={"cuda": 1.0}, last_resort=True
    ),
    "sdpa": Implementation(
        _call(None), avoid=_by_name_alone, stated_ulps={"cpu": 20.0, **RECOMPUTED_ULPS}
    ),
}
