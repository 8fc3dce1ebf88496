"""Operator classes: the kind of work of a kernel or CPU operator, derived from its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

OPTIMIZER = "optimizer"
HOST = "host"
MATRIX = "matrix product"
COMMUNICATION = "communication"
INDUCTOR = "fused by Inductor"
OTHER = "other"

# The first match wins, so special patterns precede general ones.
_PATTERNS = (
    (COMMUNICATION, r"^gloo:|nccl|c10d|all_?reduce|all_?gather|reduce_scatter|all_to_all"
     r"|broadcast_kernel"),
    ("attention", r"flash|fmha|attention|attn|scaled_dot_product|flex"),
    (INDUCTOR, r"^triton_(poi|red|per|for|tem|unk|spl)_|cpp_fused|CompiledFxGraph"),
    (MATRIX, r"gemm|gemv|xmma|nvjet|cutlass|cublas|splitk"
     r"|::(mm|bmm|addmm|addbmm|baddbmm|linear|matmul|_scaled_mm|_grouped_mm|addmv|mv|dot|einsum)\b"
     r"|quantized_matmul|linear_(few|many)_rows|low_rank|moe_experts_(hidden|product|weight)_|graph_diffusion"),
    ("convolution", r"conv"),
    ("normalisation", r"(rms|layer|group|batch|qk)_?norm|LayerNorm|RMSNorm"),
    ("scan", r"ssd|scan|cumsum|cumprod"),
    ("routing", r"moe|gating|router|topk|sort|expert"),
    ("copy", r"memcpy|memset|copy|::(cat|stack|clone|contiguous|fill_|zero_|zeros|ones|full|eye"
     r"|(zeros|ones|full)_like|scalar_tensor|to|_to_copy|roll)\b"
     r"|CatArrayBatched|FillFunctor|transpose_kernel|\broll_"),
    ("indexing", r"embedding|(?<!with_)index|gather|scatter|::(take|masked_\w+|nonzero)\b"
     r"|slice_backward|select_backward"),
    ("reduction", r"reduce|column_sum|softmax|SoftMax|nll_loss|cross_entropy|vector_norm"
     r"|::(sum|mean|max|min|amax|amin|argmax|norm|var|any|all|prod|logsumexp)\b"),
    ("transform", r"fft|dft|fourier"),
    ("elementwise", r"elementwise|pointwise|swiglu|geglu|gated_activation|rope"
     r"|qk_(for|back)ward_|silu|gelu|sigmoid|dropout|random"
     r"|::(add|sub|mul|div|pow|rsqrt|sqrt|exp|log|tanh|neg|abs|clamp\w*|relu|sin|cos|addcmul"
     r"|addcdiv|lerp|bernoulli|eq|ne|gt|lt|ge|le|remainder|bitwise\w*|logical\w*|tril|triu|where"
     r"|rsub|maximum|minimum|reciprocal|floor\w*|special_\w+"
     r"|threshold\w*|type_as|arange|rand\w*|normal\w*|uniform\w*)_?\b"),
    ("view", r"::(view|_unsafe_view|reshape|t|transpose|permute|slice|select|expand|as_strided"
     r"|split\w*|unsqueeze|squeeze|detach\w*|unflatten|flatten|narrow|unbind|chunk|alias|resolve_\w+"
     r"|empty\w*|new_empty\w*|resize_\w*|result_type|item|_local_scalar_dense|lift_fresh|set_)\b"),
)  # fmt: skip
_COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _PATTERNS)


def kind_of(name: str, callers: Sequence[str] = ()) -> str:
    """Return the class of a kernel or operator, from its own name or else from its callers' names.

    ``callers``: the operators that it ran within, the innermost first.
    """
    for candidate in (name, *callers):
        if kind := _kind(candidate):
            return kind
    return OTHER


@lru_cache(maxsize=4096)
def _kind(name: str) -> str:
    return next((kind for kind, pattern in _COMPILED if pattern.search(name)), "")
