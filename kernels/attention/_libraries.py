"""Attention of optional libraries, imported when first used: flash-attn 2, 3, 4, xformers.

FlashAttention 2, 3: github.com/Dao-AILab/flash-attention; 4: the package flash-attn-4, pure Python
on CuTe. Their tensors are [batch, sequence, heads, dim] and their causal mask ends bottom right.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels import hardware
from kernels.attention._masks import trivial
from kernels.core.autograd import needs_gradient
from kernels.core.libraries import import_problem, version
from kernels.core.operator import Implementation, unit_stride

_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class _Library:
    """Requirements of a library: packages, GPU, and inputs."""

    title: str
    distributions: tuple[str, ...]
    module: str
    capability: tuple[int, int]
    max_dim: int
    compiles: bool
    cached: bool = False  # True if it can also decode against a static KV cache
    trained_dims: tuple[int, ...] = ()  # the only head dimensions with correct gradients; (): all

    def missing(self, device_type: str) -> str | None:
        if why := hardware.needs(self.title, self.capability)(device_type):
            return why
        if not any(map(version, self.distributions)):
            return f"{self.title} is not installed (package {self.distributions[0]})"
        return None

    def refuses(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool,
        window: int | None,
        scale: float | None,
        kv_length: Tensor | None,
    ) -> str | None:
        if kv_length is not None:
            if not self.cached:
                return f"{self.title} does not support kv_length"
            if kv_length.dim() == 2:
                return f"{self.title} does not support one kv_length per query"
            if needs_gradient(q, k, v):
                return f"{self.title} has no gradient with a kv_length"
            if torch.compiler.is_compiling():
                return f"{self.title} with a kv_length cannot be traced by torch.compile"
        if q.dtype not in _HALF:
            return f"{self.title} supports only float16 and bfloat16, not {q.dtype}"
        if q.shape[-1] > self.max_dim or q.shape[-1] % 8:
            return (
                f"{self.title} supports only head dimensions 8, 16, ... {self.max_dim}, "
                f"not {q.shape[-1]}"
            )
        if self.trained_dims and q.shape[-1] not in self.trained_dims and needs_gradient(q, k, v):
            return (
                f"{self.title} has correct gradients only for head dimensions {self.trained_dims}, "
                f"not {q.shape[-1]}"
            )
        if not (q.numel() and k.numel()):
            return f"{self.title} does not support empty tensors"
        if not self.compiles and torch.compiler.is_compiling():
            return f"{self.title} cannot be traced by torch.compile"
        return import_problem(self.module) or None


def _window(causal: bool, window: int | None, everything: Any) -> tuple[Any, Any]:
    if window is None:
        return everything, everything
    return window - 1, 0 if causal else window - 1


def _first(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


def _swap(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(unit_stride(t).transpose(1, 2) for t in tensors)


def _flash(library: _Library, everything: Any) -> Implementation:
    """Wrap one version of flash-attn; ``everything`` is its value for an unlimited window side."""

    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool,
        window: int | None,
        scale: float | None,
        kv_length: Tensor | None,
    ) -> Tensor:
        module = importlib.import_module(library.module)
        q, k, v = _swap(q, k, v)
        options = {
            "softmax_scale": scale,
            "causal": causal,
            "window_size": _window(causal, window, everything),
        }
        if kv_length is None:
            out = module.flash_attn_func(q, k, v, **options)
        else:
            lengths = kv_length.to(torch.int32).expand(q.shape[0]).contiguous()
            out = module.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, **options)
        return _first(out).transpose(1, 2)

    return Implementation(call, library.missing, library.refuses)


def _xformers_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window: int | None,
    scale: float | None,
    kv_length: Tensor | None,
) -> Tensor:
    ops = importlib.import_module("xformers.ops")
    fmha = importlib.import_module("xformers.ops.fmha.attn_bias")
    bias: Any = None
    if window is not None:
        left, right = _window(causal, window, None)
        bias = fmha.LocalAttentionFromBottomRightMask(window_left=left, window_right=right)
    elif not trivial(q, causal, window, kv_length):
        bias = fmha.LowerTriangularFromBottomRightMask()
    repeats = q.shape[1] // k.shape[1]
    q, k, v = _swap(q, k, v)
    if repeats > 1:  # five dimensions: groups, and heads in a group, which share keys by a stride
        q = q.unflatten(2, (k.shape[2], repeats))
        k, v = (t.unsqueeze(3).expand(-1, -1, -1, repeats, -1) for t in (k, v))
    out = ops.memory_efficient_attention(q, k, v, attn_bias=bias, scale=scale)
    return (out.flatten(2, 3) if repeats > 1 else out).transpose(1, 2)


_FLASH2 = _Library(
    title="flash-attn 2",
    distributions=("flash-attn",),
    module="flash_attn.flash_attn_interface",
    capability=(8, 0),
    max_dim=256,
    compiles=True,
    cached=True,
)
_FLASH3 = _Library(
    title="flash-attn 3",
    distributions=("flash-attn-3", "flash_attn_3"),
    module="flash_attn_interface",
    capability=(9, 0),
    max_dim=256,
    compiles=False,
    cached=True,
)
# 4.0.0b36 on an H200: gradients of head dimensions 16 and 40 are off by more than their own size.
_FLASH4 = _Library(
    title="flash-attn 4",
    distributions=("flash-attn-4",),
    module="flash_attn.cute",
    capability=(9, 0),
    max_dim=128,
    compiles=False,
    trained_dims=(64, 128),
)
_XFORMERS = _Library("xformers", ("xformers",), "xformers.ops", (7, 0), 256, False)


def _xformers_avoid(*_: Any) -> str:
    return "is used only if selected by name, because it runs one of the other backends"


BACKENDS: dict[str, Implementation] = {
    "flash4": _flash(_FLASH4, None),
    "flash3": _flash(_FLASH3, -1),
    "flash2": _flash(_FLASH2, -1),
    "xformers": Implementation(
        _xformers_call, _XFORMERS.missing, _XFORMERS.refuses, _xformers_avoid
    ),
}
