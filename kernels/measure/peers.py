"""Kernels of other libraries for the same operators; each is optional.

A peer takes an operator's inputs by position, like an implementation. It returns NotImplemented for
inputs that it does not support. The benchmark times all peers. ``options`` makes those that do
not overwrite their inputs implementations of the operator, which toggles and ``auto`` may choose.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels.core.libraries import import_problem
from kernels.core.operator import Implementation, tensors_kept

Peer = Callable[..., Any]


def _liger_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Any:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return LigerRMSNormFunction.apply(x, weight, eps, 0.0, "llama", False)


def _fla_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Any:
    from fla.modules.layernorm import rms_norm

    return rms_norm(x, weight, None, eps=eps)


def _quack_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Any:
    from quack import rmsnorm

    return rmsnorm(x, weight, eps=eps)


def _liger_swiglu(gate: Tensor, up: Tensor | None) -> Any:
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    return NotImplemented if up is None else LigerSiLUMulFunction.apply(gate, up)


def _fla_swiglu(gate: Tensor, up: Tensor | None) -> Any:
    from fla.modules.activations import swiglu

    return NotImplemented if up is None else swiglu(gate, up)


def _liger_rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, offset: int | Tensor
) -> Any:
    from liger_kernel.ops.rope import LigerRopeFunction

    if interleaved or isinstance(offset, Tensor):
        return NotImplemented
    length = q.shape[2]
    full = (torch.cat((t[:length], t[:length]), -1)[None] for t in (cos, sin))
    return LigerRopeFunction.apply(q, k, *full)


def _by_length(
    rotate: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool,
    offset: int | Tensor,
) -> Any:
    """Rotate queries and keys as [B, S, H, D], one after the other."""
    if isinstance(offset, Tensor) or offset or 2 * cos.shape[1] != q.shape[3]:
        return NotImplemented
    return tuple(
        rotate(x.transpose(1, 2), cos, sin, interleaved=interleaved).transpose(1, 2) for x in (q, k)
    )


def _fla_rope(q: Tensor, k: Tensor, cos: Tensor, *other_arguments: Any) -> Any:
    from fla.modules.rotary import rotary_embedding

    if cos.dtype != q.dtype:
        return NotImplemented
    return _by_length(rotary_embedding, q, k, cos, *other_arguments)


def _quack_rope(*inputs: Any) -> Any:
    from quack.rotary import apply_rotary_emb

    return _by_length(apply_rotary_emb, *inputs)


class _WideProduct(torch.autograd.Function):
    """Product x weight^T of 16-bit values in FP32, which torch does not differentiate.

    In two sums, because matrix units truncate as they accumulate: one sum of 4,096 columns was off
    by 1.58 of the allowed error.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        half = x.shape[1] // 2
        terms = [
            torch.mm(x[:, part], weight[:, part].T, out_dtype=torch.float32)
            for part in (slice(half), slice(half, None))
        ]
        return terms[0] + terms[1]

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        dout = dout.to(x.dtype)
        return dout @ weight, dout.T @ x


def _quack_moe_gating(
    x: Tensor, weight: Tensor, k: int, renormalise: bool, noise: Tensor | None
) -> Any:
    """Choose with quack's top-k; compute product, softmax and statistics with torch.

    The values of quack's top-k hold the column in their lowest bits: only the choice is exact.
    """
    from quack.topk import topk

    if not renormalise or noise is not None or x.dim() != 2 or x.dtype == torch.float32:
        return NotImplemented
    # rounding the logits to 16 bits would choose other experts
    logits = _WideProduct.apply(x, weight)
    chosen = topk(logits.detach(), k, softmax=False)[1].long()
    weights = logits.gather(1, chosen).softmax(-1)
    counts = torch.zeros(len(weight), dtype=torch.int64, device=x.device)
    counts = counts.scatter_add(0, chosen.flatten(), torch.ones_like(chosen).flatten())
    return weights, chosen, counts, logits.softmax(-1).mean(0)


def _liger_linear_cross_entropy(
    x: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str
) -> Any:
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    outputs = LigerFusedLinearCrossEntropyFunction.apply(
        x.flatten(0, -2), weight, target.flatten(), None, None, ignore_index, 0.0, 0.0, reduction
    )
    return outputs[0].float()


def _fla_linear_cross_entropy(
    x: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str
) -> Any:
    from fla.modules.fused_linear_cross_entropy.ops import fused_linear_cross_entropy_loss

    return fused_linear_cross_entropy_loss(
        x.flatten(0, -2), target.flatten(), weight, ignore_index=ignore_index, reduction=reduction
    ).float()


def _quack_linear_cross_entropy(
    x: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str
) -> Any:
    from quack.linear_cross_entropy import chunked_linear_cross_entropy

    return chunked_linear_cross_entropy(
        x.flatten(0, -2), weight, target.flatten(), ignore_index=ignore_index, reduction=reduction
    ).float()


def _fla_causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor | None,
    activation: str | None,
    update_state: bool,
) -> Any:
    from fla.modules.convolution import causal_conv1d

    return causal_conv1d(
        x, weight, bias, initial_state=state, output_final_state=True, activation=activation
    )


def _mamba_gated_rms_norm(
    x: Tensor, z: Tensor, weight: Tensor | None, group_size: int | None, eps: float
) -> Any:
    from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn

    if weight is None:
        return NotImplemented
    return rmsnorm_fn(x, weight, None, z=z, eps=eps, group_size=group_size, norm_before_gate=False)


def _mamba_ssd_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    dt_bias: Tensor | None,
    state: Tensor | None,
    dt_softplus: bool,
    chunk: int | None,
) -> Any:
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    return mamba_chunk_scan_combined(
        x, dt, a, b, c, chunk or 256, D=d, dt_bias=dt_bias, initial_states=state,
        dt_softplus=dt_softplus, return_final_states=True,
    )  # fmt: skip


def _grouped_mm(
    x: Tensor, index: Tensor, weight: Tensor, gate: Tensor, up: Tensor | None, down: Tensor
) -> Any:
    """Run torch's grouped product between a sort and a sum; no choice is dropped."""
    if up is not None or x.dtype != torch.bfloat16 or x.dim() != 2:
        return NotImplemented
    order = index.flatten().argsort(stable=True)
    token = order // index.shape[1]
    counts = (index.flatten()[:, None] == torch.arange(len(down), device=x.device)).sum(0)
    ends = counts.cumsum(0).to(torch.int32)
    g, u = torch._grouped_mm(x[token], gate.transpose(1, 2), offs=ends).chunk(2, -1)
    hidden = torch.nn.functional.silu(g) * u
    rows = torch._grouped_mm(hidden, down.transpose(1, 2), offs=ends)
    rows = rows * weight.flatten()[order, None].to(rows.dtype)
    return torch.zeros_like(x).index_add(0, token, rows)


@tensors_kept(8)
def _on_host(length: Tensor) -> Tensor:
    return length.cpu()


def _decoded(
    attend: Peer,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window: int | None,
    scale: float | None,
    kv_length: Tensor | None,
) -> Any:
    """Attend from one query to the part of the cache that it sees.

    A loop that generates text knows that part's length on the host.
    """
    if kv_length is None or kv_length.numel() != 1 or q.shape[2] != 1:
        return NotImplemented
    end = int(_on_host(kv_length))
    seen = slice(0 if window is None else max(0, end - window), end)
    return attend(q, k[:, :, seen], v[:, :, seen], scale)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
    from torch.nn.functional import scaled_dot_product_attention

    return scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True)


def _flash_4(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Any:
    from flash_attn.cute import flash_attn_func

    by_tokens = [x.transpose(1, 2) for x in (q, k, v)]
    out = flash_attn_func(*by_tokens, softmax_scale=scale)
    return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)


PEERS: dict[str, dict[str, Peer]] = {
    "rms_norm": {"liger": _liger_rms_norm, "fla": _fla_rms_norm, "quack": _quack_rms_norm},
    "swiglu": {"liger": _liger_swiglu, "fla": _fla_swiglu},
    "rope": {"liger": _liger_rope, "fla": _fla_rope, "quack": _quack_rope},
    "moe_gating": {"quack": _quack_moe_gating},
    "linear_cross_entropy": {
        "liger": _liger_linear_cross_entropy,
        "fla": _fla_linear_cross_entropy,
        "quack": _quack_linear_cross_entropy,
    },
    "attention": {
        "sdpa, decoding": functools.partial(_decoded, _sdpa),
        "flash4, decoding": functools.partial(_decoded, _flash_4),
    },
    "causal_conv1d": {"fla": _fla_causal_conv1d},
    "gated_rms_norm": {"mamba": _mamba_gated_rms_norm},
    "ssd_scan": {"mamba": _mamba_ssd_scan},
    "moe_experts": {"grouped_mm": _grouped_mm},
}
PACKAGES = {
    "grouped_mm": "torch",
    "sdpa, decoding": "torch",
    "flash4, decoding": "flash_attn",
    "liger": "liger_kernel",
    "fla": "fla",
    "quack": "quack",
    "mamba": "mamba_ssm",
}
DISTRIBUTIONS = {
    "liger": "liger-kernel",
    "fla": "fla-core",
    "quack": "quack-kernels",
    "mamba": "mamba-ssm",
}
TITLES = {"liger": "Liger", "fla": "fla", "quack": "quack", "mamba": "mamba_ssm"}
# They write results or gradients over their inputs, which others may still read.
OVERWRITES = (("rope", "liger"), ("swiglu", "liger"))
_NARROW = (torch.float16, torch.bfloat16)


def peers(op_name: str) -> dict[str, Peer]:
    """Return the peers of an operator whose packages are installed."""
    return {
        name: peer
        for name, peer in PEERS.get(op_name, {}).items()
        if importlib.util.find_spec(PACKAGES[name]) is not None
    }


def options(op_name: str) -> dict[str, Implementation]:
    """Return implementations of an operator by other libraries, installed or not."""
    return {
        name: Implementation(
            peer,
            functools.partial(_missing, op_name, name),
            functools.partial(_refuses, op_name, name),
        )
        for name, peer in PEERS.get(op_name, {}).items()
        if name in DISTRIBUTIONS
    }


def _missing(op_name: str, name: str, device_type: str) -> str | None:
    title = TITLES[name]
    if (op_name, name) in OVERWRITES:
        return f"{title} overwrites its inputs here, which other operators may still read"
    if device_type != "cuda":
        return f"{title} needs a CUDA GPU, not {device_type}"
    if importlib.util.find_spec(PACKAGES[name]) is None:
        return f"{title} is not installed (package {DISTRIBUTIONS[name]})"
    return None


def _refuses(op_name: str, name: str, *inputs: Any) -> str | None:
    title = TITLES[name]
    if torch.compiler.is_compiling():
        return f"{title} cannot be traced by torch.compile"
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    if not all(x.numel() for x in tensors):
        return f"{title} does not support empty tensors"
    if any(x.dtype == torch.float64 for x in tensors):
        return f"{title} computes in FP32 and does not support FP64"
    return _SUPPORT[op_name](title, *inputs) or import_problem(PACKAGES[name]) or None


def _norm(title: str, x: Tensor, weight: Tensor | None, eps: float) -> str | None:
    if weight is None or weight.dtype != x.dtype:
        return f"{title} needs a weight with the dtype of x"
    return _aligned(title, x, x.shape[-1])


def _aligned(title: str, x: Tensor, width: int) -> str | None:
    if width * x.element_size() % 16:
        return f"{title} needs rows of a multiple of 16 bytes, not {width * x.element_size()}"
    return _contiguous(title, x)


def _halves(title: str, gate: Tensor, up: Tensor | None) -> str | None:
    if up is None:
        return f"{title} needs gates and ups as two tensors"
    return _aligned(title, gate, gate.shape[-1]) or _aligned(title, up, up.shape[-1])


def _table(
    title: str, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, offset: Any
) -> str | None:
    if isinstance(offset, Tensor) or offset:
        return f"{title} can rotate only from position 0"
    if 2 * cos.shape[1] != q.shape[3] or len(cos) < q.shape[2]:
        return f"{title} needs a table of half the head dimension"
    if title == TITLES["fla"] and cos.dtype != q.dtype:
        return f"{title} needs a table with the dtype of q"
    return None if q.shape[3] % 16 == 0 else f"{title} needs head dimensions 16, 32, ..."


def _routing(
    title: str, x: Tensor, weight: Tensor, k: int, renormalise: bool, noise: Tensor | None
) -> str | None:
    if not renormalise or noise is not None or x.dim() != 2:
        return f"{title} supports only renormalised weights of tokens [N, H] without noise"
    if x.dtype not in _NARROW or weight.dtype != x.dtype:
        return f"{title} supports only float16 and bfloat16, not {x.dtype}"
    experts = len(weight)
    if experts & (experts - 1) or experts < 8 or k & (k - 1):
        return (
            f"{title} needs powers of two as numbers of experts (at least 8) and choices, "
            f"not {experts} and {k}"
        )
    return None


def _loss(
    title: str, x: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str
) -> str | None:
    if x.dtype not in _NARROW:
        return f"{title} supports only float16 and bfloat16, not {x.dtype}"
    if x.dim() < 2:
        return f"{title} needs tokens [..., D], not a tensor of shape {tuple(x.shape)}"
    return _aligned(title, x, x.shape[-1]) or _aligned(title, weight, len(weight))


def _contiguous(title: str, *inputs: Any) -> str | None:
    if all(x.is_contiguous() for x in inputs if isinstance(x, Tensor)):
        return None
    return f"{title} needs contiguous tensors"


def _convolution(
    title: str, x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None, *_: Any
) -> str | None:
    if state is not None or weight.dtype != x.dtype:
        return f"{title} supports no initial state and needs a weight with the dtype of x"
    return _aligned(title, x, x.shape[-1])


def _gate(
    title: str, x: Tensor, z: Tensor, weight: Tensor | None, group_size: int | None, eps: float
) -> str | None:
    if weight is None or weight.dtype != x.dtype:
        return f"{title} needs a weight with the dtype of x"
    return _contiguous(title, x, z)


_SUPPORT: dict[str, Callable[..., str | None]] = {
    "rms_norm": _norm,
    "swiglu": _halves,
    "rope": _table,
    "moe_gating": _routing,
    "linear_cross_entropy": _loss,
    "causal_conv1d": _convolution,
    "gated_rms_norm": _gate,
    "ssd_scan": _contiguous,
}
