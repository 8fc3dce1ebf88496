"""Attention of other modules by ``kernels.attention``.

Modules of transformers call the attention that their configuration names, and get masks from a
function of the same name. Other modules call ``F.scaled_dot_product_attention``. A call that the
operator does not support (with a mask, dropout or another alignment) computes as before.

A configuration that names "eager" is not changed. Each model has an eager function of its own,
which may add sinks (GPT-OSS), a soft cap (Gemma 2) or scales of layers (GPT-2).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

import kernels
from workbench.runner.foreign.patches import Patch
from workbench.runner.foreign.rebinding import Rebinder

NAME = "workbench"  # our name in transformers' registries of attention
_CHOICE = "_attn_implementation_internal"  # attribute of a configuration of transformers
_SDPA = nn.functional.scaled_dot_product_attention


def patch_attention(model: nn.Module) -> Patch:
    """Replace the attention of all modules."""
    patch = Rebinder(lambda value: attend if value is _SDPA else value).patch(
        model, "scaled_dot_product_attention"
    )
    for path, module in model.named_modules():
        config = getattr(module, "config", None)
        attributes = getattr(config, "__dict__", {})
        calls = getattr(module, "_supports_attention_backend", False)
        if calls and attributes.get(_CHOICE) == "sdpa":
            _register()
            patch.set_attribute(attributes, _CHOICE, NAME)
            patch.sites[path] = f"attention interface of {type(module).__name__}"
    return patch


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute what ``F.scaled_dot_product_attention`` computes."""
    heads = query.dim() == 4 and (enable_gqa or query.shape[1] == key.shape[1])
    if attn_mask is None and not dropout_p and heads and _fits(query, key, value, is_causal):
        return kernels.attention(query, key, value, causal=is_causal, scale=scale)
    # Pass ``enable_gqa`` only if it is set: an older torch lacks this argument.
    options = {"enable_gqa": True} if enable_gqa else {}
    return _SDPA(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **options)


def _fits(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> bool:
    return (
        not (q.is_nested or k.is_nested or v.is_nested)
        and q.dim() == k.dim() == v.dim() == 4
        and len(q) == len(k) == len(v)
        and k.shape == v.shape
        and q.shape[3] == k.shape[3]
        and q.shape[1] % k.shape[1] == 0
        and (not is_causal or q.shape[2] == k.shape[2])
    )


@functools.cache
def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _interface)
    AttentionMaskInterface.register(NAME, _mask)


def _interface(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention of a module of transformers: [B, S, H, D]."""
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    known = all(options.get(name) is None for name in ("softcap", "s_aux", "position_bias"))
    window = None if sliding_window is None or key.shape[2] <= sliding_window else sliding_window
    fits = _fits(query, key, value, causal) and (causal or window is None)
    if attention_mask is None and known and not dropout and fits:
        out = kernels.attention(query, key, value, causal=causal, window=window, scale=scaling)
        return out.transpose(1, 2).contiguous(), None
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if attention_mask is None and window is not None and query.shape[2] > 1:
        positions = torch.arange(key.shape[2], device=query.device)
        queries = positions[-query.shape[2] :, None]
        attention_mask = (positions <= queries) & (positions > queries - window)
    return sdpa_attention_forward(
        module,
        query,
        key,
        value,
        attention_mask,
        dropout=dropout,
        scaling=scaling,
        is_causal=is_causal,
        **options,
    )


def _mask(*args: Any, **named: Any) -> Tensor | None:
    """Return no mask for a window of a causal layer, which ``_interface`` applies; else SDPA's."""
    from transformers.masking_utils import sdpa_mask

    window, config = named.get("local_size"), named.get("config")
    is_window = (
        window is not None
        and window == getattr(config, "sliding_window", None)
        and getattr(config, "attention_chunk_size", None) is None
        and named.get("attention_mask") is None
        and named.get("allow_is_causal_skip", True)
        and not named.get("allow_is_bidirectional_skip", False)
        and named.get("q_length") is not None
        and named.get("q_length") == named.get("kv_length")
    )
    return None if is_window else sdpa_mask(*args, **named)
