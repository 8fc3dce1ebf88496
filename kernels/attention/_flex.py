"""Torch's flex_attention: a kernel generated for the mask.

Its module imports Dynamo, which takes seconds: it is imported by the first call that needs it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernels.attention._masks import RECOMPUTED_ULPS, has_groups
from kernels.core import triton_helpers
from kernels.core.autograd import needs_gradient
from kernels.core.operator import (
    Implementation,
    own_code,
    tensors_kept,
    traced_as_constant,
    unit_stride,
)

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128  # queries, and keys, per block of the mask


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window: int | None,
    scale: float | None,
    kv_length: Tensor | None,
) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    length, keys = q.shape[2], k.shape[2]
    mask = None
    if causal or window is not None:
        shape = (length, keys, causal, window, str(q.device))
        traced = torch.compiler.is_dynamo_compiling()
        mask = getattr(_MASKS, _named_mask(*shape)) if traced else _block_mask(*shape)
    q, k, v = unit_stride(q), unit_stride(k), unit_stride(v)
    run = flex_attention
    if q.is_cuda and not torch.compiler.is_compiling():
        run = _compiled(q.dtype, q.shape, k.shape, mask is None, q.requires_grad)
    return run(q, k, v, block_mask=mask, scale=scale, enable_gqa=has_groups(q, k))


def _mask_mod(
    length: int, keys: int, causal: bool, window: int | None
) -> Callable[[Any, Any, Any, Any], Any]:
    shift = keys - length

    def seen(batch: Any, head: Any, query: Any, key: Any) -> Any:
        mask = key >= 0
        if causal:
            mask = mask & (key <= query + shift)
        if window is not None:
            mask = mask & (key > query + shift - window)
            if not causal:
                mask = mask & (key < query + shift + window)
        return mask

    return seen


class _Masks:
    """Masks of compiled code as attributes: Dynamo traces an object only if it knows its place."""


_MASKS = _Masks()


@traced_as_constant
def _named_mask(*shape: Any) -> str:
    """Add a mask to ``_MASKS``; return its name there."""
    name = "_".join(map(str, shape))
    setattr(_MASKS, name, _block_mask(*shape))
    return name


@tensors_kept(64)
def _block_mask(length: int, keys: int, causal: bool, window: int | None, device: str) -> BlockMask:
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(
        _mask_mod(length, keys, causal, window), None, None, length, keys, device=device
    )


@functools.lru_cache(maxsize=64)
def _compiled(*_: Any) -> Callable[..., Tensor]:
    """Return a compiled function for each of these keys: past 8 recompilations it runs unfused."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(own_code(flex_attention), dynamic=False)


def _missing(device_type: str) -> str | None:
    return None if device_type == "cpu" else triton_helpers.missing(device_type)


def _refuses(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window: int | None,
    scale: float | None,
    kv_length: Tensor | None,
) -> str | None:
    if kv_length is not None:
        return "flex would build a new block mask on every call with a kv_length"
    if not (q.numel() and k.numel()):
        return "flex does not support empty tensors"
    if q.dtype == torch.float64:
        return "flex does not support float64"
    if q.is_cuda and q.shape[-1] < 16:
        return f"flex supports only head dimensions of at least 16 on a GPU, not {q.shape[-1]}"
    length, heads = q.shape[2], q.shape[1] // k.shape[1]
    decoded = q.is_cuda and length < BLOCK and heads & (heads - 1) == 0
    if decoded and length * heads > BLOCK and (causal or window is not None):
        return (  # torch decodes, and has no kernel for more rows than a block of the mask has
            f"with a mask and fewer than {BLOCK} queries, flex supports up to {BLOCK} rows per key "
            f"head, not {length * heads} ({length} x {heads}, queries times heads)"
        )
    if not q.is_cuda and needs_gradient(q, k, v):
        return "flex has no backward pass on the CPU"
    return None


def _avoid(*_: Any) -> str:
    return "is used only if selected by name, because it compiles a kernel for each mask"


BACKENDS = {
    "flex": Implementation(_call, _missing, _refuses, _avoid, stated_ulps=RECOMPUTED_ULPS),
}
