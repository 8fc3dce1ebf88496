"""Invalid input raises one sentence with the values, before anything is launched."""

import pytest
import torch

import kernels
from kernels import Mistake


def t(*shape, dtype=torch.float32, device="cpu"):
    return torch.zeros(shape, dtype=dtype, device=device)


def ssd(**other):
    """Return inputs of a scan that fit together, except for the given ones."""
    inputs = {
        "x": t(2, 5, 8, 4),
        "dt": t(2, 5, 8),
        "A": t(8),
        "B": t(2, 5, 1, 3),
        "C": t(2, 5, 1, 3),
    }
    return (inputs | other).values()


TABLE = t(16, 4), t(16, 4)
FIRST = torch.tensor(0)


def to_cache(heads, cache, **more):
    """Prepare the first token of a cache."""
    return kernels.rope_to_cache(heads, cache, *TABLE, FIRST, **more)


GATE, DOWN = t(4, 6, 8), t(4, 8, 6)  # of four experts, 8 wide, 6 inside


def chosen(*shape):
    return t(*shape, dtype=torch.int64), t(*shape)


MISTAKES = {
    "rms_norm: weight must have shape (8,), the last dimension of x (3, 8), but has (7,)": (
        lambda: kernels.rms_norm(t(3, 8), t(7))
    ),
    "rms_norm: x must be float16, bfloat16, float32 or float64, not torch.int64": (
        lambda: kernels.rms_norm(t(3, 8, dtype=torch.int64))
    ),
    "rms_norm: x must have at least one dimension, but is a scalar": (
        lambda: kernels.rms_norm(t())
    ),
    "rms_norm: all tensors must be on one device, but the first is on cpu and weight on meta": (
        lambda: kernels.rms_norm(t(3, 8), t(8, device="meta"))
    ),
    "swiglu: one packed tensor must have an even last dimension (gate, then up), but has shape "
    "(3, 7); pass gate and up for two tensors": (lambda: kernels.swiglu(t(3, 7))),
    "swiglu: gate and up must have one dtype and one shape of at least one dimension, but are "
    "(3, 8) torch.float32 and (3, 8) torch.float16": (
        lambda: kernels.swiglu(t(3, 8), t(3, 8, dtype=torch.float16))
    ),
    "geglu: gate and up must have one dtype and one shape of at least one dimension, but are () "
    "torch.float32 and () torch.float32": (lambda: kernels.geglu(t(), t())),
    "rope: q and k must be [batch, heads, sequence, dim] and agree in all but the heads, but are "
    "(1, 2, 5, 8) torch.float32 and (1, 2, 6, 8) torch.float32": (
        lambda: kernels.rope(t(1, 2, 5, 8), t(1, 2, 6, 8), *TABLE)
    ),
    "rope: the head dimension must be even, but is 7": (
        lambda: kernels.rope(t(1, 2, 5, 7), t(1, 2, 5, 7), *TABLE)
    ),
    "rope: cos and sin must both be [positions, 5 or 10] for a head dimension of 10, but are "
    "(16, 4) and (16, 4)": (lambda: kernels.rope(t(1, 2, 5, 10), t(1, 2, 5, 10), *TABLE)),
    "rope: cos and sin get no gradient, but one of them requires it; detach them": (
        lambda: kernels.rope(t(1, 2, 5, 8), t(1, 2, 5, 8), t(16, 4).requires_grad_(), t(16, 4))
    ),
    "rope: positions 14 to 18 are not in the table's range, 0 to 15": (
        lambda: kernels.rope(t(1, 2, 5, 8), t(1, 2, 5, 8), *TABLE, offset=14)
    ),
    "rope: a tensor offset must be an integer, [] or [1], but is (2,) torch.int64": (
        lambda: kernels.rope(t(1, 2, 5, 8), t(1, 2, 5, 8), *TABLE, offset=t(2, dtype=torch.int64))
    ),
    "add_rms_norm: x and residual must have one shape of at least one dimension, but are (3, 8) "
    "and (3, 7)": (lambda: kernels.add_rms_norm(t(3, 8), t(3, 7))),
    "add_rms_norm: weight must have shape (8,), the last dimension of x (3, 8), but has (7,)": (
        lambda: kernels.add_rms_norm(t(3, 8), t(3, 8), t(7))
    ),
    "qk_norm: q_weight and k_weight must be [8] of one dtype, but are (7,) torch.float32 and (8,) "
    "torch.float32": (lambda: kernels.qk_norm(t(1, 2, 5, 8), t(1, 2, 5, 8), t(7), t(8))),
    "qk_norm_rope: positions 0 to 19 are not in the table's range, 0 to 15": (
        lambda: kernels.qk_norm_rope(t(1, 2, 20, 8), t(1, 2, 20, 8), t(8), t(8), *TABLE)
    ),
    "geglu: approximate must be one of ('none', 'tanh'), not 'erf'": (
        lambda: kernels.geglu(t(3, 8), t(3, 8), "erf")
    ),
    "fused_linear: expected x [..., K] and a weight [N, K], but got (3, 8) and (5, 7)": (
        lambda: kernels.fused_linear(t(3, 8), t(5, 7))
    ),
    "fused_linear: expected x [..., K] and a weight [N, K], but got (3, 8) and ()": (
        lambda: kernels.fused_linear(t(3, 8), torch.tensor(1.0))
    ),
    "fused_linear: a gated weight needs an even number of rows, but has 5": (
        lambda: kernels.fused_linear(t(3, 8), t(5, 8), gated=True)
    ),
    "fused_linear: with a weight (5, 8) norm must be (8,), but is (5,)": (
        lambda: kernels.fused_linear(t(3, 8), t(5, 8), t(5))
    ),
    "fused_linear: with a weight (10, 8) residual must be (3, 5), but is (3, 10)": (
        lambda: kernels.fused_linear(t(3, 8), t(10, 8), None, t(3, 10), True)
    ),
    "fused_linear: residual must have x's dtype, torch.float32, but has torch.float16": (
        lambda: kernels.fused_linear(t(3, 8), t(5, 8), None, t(3, 5, dtype=torch.float16))
    ),
    "fused_linear: it computes no gradients; call it under torch.no_grad()": (
        lambda: kernels.fused_linear(t(3, 8).requires_grad_(), t(5, 8))
    ),
    "rope_to_cache: expected heads [B, H + 2 G, D] and a cache [B, 2 G, T, D] with an even D, but "
    "got (2, 4, 8) and (2, 3, 5, 8)": (lambda: to_cache(t(2, 4, 8), t(2, 3, 5, 8))),
    "rope_to_cache: heads (2, 4, 8) need a cache [2, 2 G, T, 8] with 2 G at most 4, but it is "
    "(2, 6, 5, 8)": (lambda: to_cache(t(2, 4, 8), t(2, 6, 5, 8))),
    "rope_to_cache: the cache must have the dtype of the heads, torch.float32, but has "
    "torch.float16": (lambda: to_cache(t(2, 4, 8), t(2, 2, 5, 8, dtype=torch.float16))),
    "rope_to_cache: cos and sin must be [positions, 3], but are (16, 4) and (16, 4)": (
        lambda: to_cache(t(2, 4, 6), t(2, 2, 5, 6))
    ),
    "rope_to_cache: position must be an int64 tensor with shape (), but is torch.float32 (1,)": (
        lambda: kernels.rope_to_cache(t(2, 4, 8), t(2, 2, 5, 8), *TABLE, t(1))
    ),
    "rope_to_cache: q_weight and k_weight must both be [8] or None, but are (8,) and None": (
        lambda: to_cache(t(2, 4, 8), t(2, 2, 5, 8), q_weight_D=t(8))
    ),
    "rope_to_cache: matrix must be torch.float32 (3, 8, 8), but is torch.float32 (4, 8, 8)": (
        lambda: to_cache(t(2, 4, 8), t(2, 2, 5, 8), matrix_ZDD=t(4, 8, 8))
    ),
    "rope_to_cache: a call that writes into cache_BYTD computes no gradients; make it under "
    "torch.no_grad()": (lambda: to_cache(t(2, 4, 8).requires_grad_(), t(2, 2, 5, 8))),
    "qkv_rope: expected x [B, S, E] and a weight [(H + 2 G) D, E], but got (2, 3, 6) and (32, 5)": (
        lambda: kernels.qkv_rope(t(2, 3, 6), t(32, 5), *TABLE, 2, 1)
    ),
    "qkv_rope: n_heads and n_kv_heads must be at least 1, and heads must have an even width, but "
    "they are 2 and 1 with a weight (36, 6)": (
        lambda: kernels.qkv_rope(t(2, 3, 6), t(36, 6), *TABLE, 2, 1)
    ),
    "qkv_rope: the weight must have x's dtype, torch.float32, but has torch.float16": (
        lambda: kernels.qkv_rope(t(2, 3, 6), t(32, 6, dtype=torch.float16), *TABLE, 2, 1)
    ),
    "qkv_rope: q_weight and k_weight must both be tensors or both be None": (
        lambda: kernels.qkv_rope(t(2, 3, 6), t(32, 6), *TABLE, 2, 1, t(8))
    ),
    "qkv_rope: positions 14 to 16 are not in the table's range, 0 to 15": (
        lambda: kernels.qkv_rope(t(2, 3, 6), t(32, 6), *TABLE, 2, 1, offset=14)
    ),
    "qkv_rope: cos and sin must be [positions, 2], but are (16, 4)": (
        lambda: kernels.qkv_rope(t(2, 3, 6), t(16, 6), *TABLE, 2, 1)
    ),
    "qkv_rope: it computes no gradients; call it under torch.no_grad()": (
        lambda: kernels.qkv_rope(t(2, 3, 6).requires_grad_(), t(32, 6), *TABLE, 2, 1)
    ),
    "linear: expected x [..., K] and a weight [N, K], but got (3, 8) and (5, 7)": (
        lambda: kernels.linear(t(3, 8), t(5, 7))
    ),
    "linear: with a weight (5, 8) bias must be (5,), but is (8,)": (
        lambda: kernels.linear(t(3, 8), t(5, 8), t(8))
    ),
    "linear: weight must have x's dtype, torch.float32, but has torch.float16": (
        lambda: kernels.linear(t(3, 8), t(5, 8, dtype=torch.float16), t(5))
    ),
    "linear: bias must have x's dtype, torch.float32, but has torch.float16": (
        lambda: kernels.linear(t(3, 8), t(5, 8), t(5, dtype=torch.float16))
    ),
    "linear_cross_entropy: target must be int64 (3,), but is torch.int64 (4,)": (
        lambda: kernels.linear_cross_entropy(t(3, 8), t(5, 8), t(4, dtype=torch.int64))
    ),
    "linear_cross_entropy: expected x [..., D] and weight [V, D], but got (3, 8) and (5, 7)": (
        lambda: kernels.linear_cross_entropy(t(3, 8), t(5, 7), t(3, dtype=torch.int64))
    ),
    "linear_cross_entropy: reduction must be one of ('mean', 'sum'), not 'none'": (
        lambda: kernels.linear_cross_entropy(
            t(3, 8), t(5, 8), t(3, dtype=torch.int64), reduction="none"
        )
    ),
    "fourier_mix: cutoff must be a fraction from 0 to 1, but is 4": (
        lambda: kernels.fourier_mix(t(2, 5, 8), cutoff=4)
    ),
    "fourier_mix: over must be one of ('sequence', 'features', 'both'), not 'time'": (
        lambda: kernels.fourier_mix(t(2, 5, 8), over="time")
    ),
    "graph_diffusion: expected h [..., M] and p [M, M], but got (3, 8) and (8, 7)": (
        lambda: kernels.graph_diffusion(t(3, 8), t(8, 7))
    ),
    "graph_diffusion: steps must be at least 1 and alpha from 0 to 1, but are 0 and 0.5": (
        lambda: kernels.graph_diffusion(t(3, 8), t(8, 8), steps=0, alpha=0.5)
    ),
    "low_rank: rank must be from 1 to 6, the smaller dimension of x (2, 6, 8), but is 7": (
        lambda: kernels.low_rank(t(2, 6, 8), 7)
    ),
    "gated_rms_norm: x and z must have one dtype and one shape of at least one dimension, but are "
    "(3, 8) torch.float32 and (3, 7) torch.float32": (
        lambda: kernels.gated_rms_norm(t(3, 8), t(3, 7))
    ),
    "gated_rms_norm: weight must have shape (8,), the last dimension of x (3, 8), but has (7,)": (
        lambda: kernels.gated_rms_norm(t(3, 8), t(3, 8), t(7))
    ),
    "gated_rms_norm: group_size must divide the number of channels, 8, but is 3": (
        lambda: kernels.gated_rms_norm(t(3, 8), t(3, 8), group_size=3)
    ),
    "causal_conv1d: expected x [B, L, D] and weight [D, W], but got (2, 5, 8) and (7, 4)": (
        lambda: kernels.causal_conv1d(t(2, 5, 8), t(7, 4))
    ),
    "causal_conv1d: the width must be one of (2, 3, 4), but weight has width 5": (
        lambda: kernels.causal_conv1d(t(2, 5, 8), t(8, 5))
    ),
    "causal_conv1d: bias must be [8], but is (7,)": (
        lambda: kernels.causal_conv1d(t(2, 5, 8), t(8, 4), t(7))
    ),
    "causal_conv1d: initial_state must be [B, D, W], here (2, 8, 4), but is (2, 8, 3)": (
        lambda: kernels.causal_conv1d(t(2, 5, 8), t(8, 4), None, t(2, 8, 3))
    ),
    "causal_conv1d: activation must be one of (None, 'silu'), not 'relu'": (
        lambda: kernels.causal_conv1d(t(2, 5, 8), t(8, 4), activation="relu")
    ),
    "causal_conv1d: update_state needs an initial_state of torch.float32, not None": (
        lambda: kernels.causal_conv1d(t(2, 5, 8), t(8, 4), update_state=True)
    ),
    "causal_conv1d: update_state needs an initial_state of torch.float32, not torch.float16": (
        lambda: kernels.causal_conv1d(
            t(2, 5, 8), t(8, 4), None, t(2, 8, 4).half(), update_state=True
        )
    ),
    "causal_conv1d: a call that writes into initial_state_BDW computes no gradients; make it under "
    "torch.no_grad()": (
        lambda: kernels.causal_conv1d(
            t(2, 5, 8).requires_grad_(), t(8, 4), None, t(2, 8, 4), update_state=True
        )
    ),
    "ssd_step: a call that writes into state_BHPN computes no gradients; make it under "
    "torch.no_grad()": (
        lambda: kernels.ssd_step(
            t(2, 8, 4),
            t(2, 8),
            t(8).requires_grad_(),
            t(2, 1, 3),
            t(2, 1, 3),
            t(2, 8, 4, 3),
            update_state=True,
        )
    ),
    "ssd_scan: expected x [B, L, H, P] and dt [B, L, H], but got (2, 5, 8, 4) and (2, 5, 7)": (
        lambda: kernels.ssd_scan(*ssd(dt=t(2, 5, 7)))
    ),
    "ssd_scan: B and C must both be [B, L, G, N] with x's (2, 5) first, but are (2, 6, 1, 3) and "
    "(2, 6, 1, 3)": (lambda: kernels.ssd_scan(*ssd(B=t(2, 6, 1, 3), C=t(2, 6, 1, 3)))),
    "ssd_scan: the groups of B, 3, must divide the heads of x, 8": (
        lambda: kernels.ssd_scan(*ssd(B=t(2, 5, 3, 3), C=t(2, 5, 3, 3)))
    ),
    "ssd_scan: x, B and C must have one dtype, but are torch.float32, torch.float32, "
    "torch.float16": (lambda: kernels.ssd_scan(*ssd(C=t(2, 5, 1, 3, dtype=torch.float16)))),
    "ssd_scan: A must be [8], but is (8, 4)": lambda: kernels.ssd_scan(*ssd(A=t(8, 4))),
    "ssd_scan: dt_bias must be [8], but is (1,)": (
        lambda: kernels.ssd_scan(*ssd(), dt_bias_H=t(1))
    ),
    "ssd_scan: the state must be [B, H, P, N], here (2, 8, 4, 3), but is (2, 8, 3, 4)": (
        lambda: kernels.ssd_scan(*ssd(), initial_state_BHPN=t(2, 8, 3, 4))
    ),
    "ssd_step: expected x [B, H, P] and dt [B, H], but got (2, 5, 8, 4) and (2, 5, 8)": (
        lambda: kernels.ssd_step(*ssd(), t(2, 8, 4, 3))
    ),
    "ssd_step: the state must be [B, H, P, N], here (2, 8, 4, 3), but is (2, 8, 4, 4)": (
        lambda: kernels.ssd_step(t(2, 8, 4), t(2, 8), t(8), t(2, 1, 3), t(2, 1, 3), t(2, 8, 4, 4))
    ),
    "attention: the number of key heads, 2, must divide the number of query heads, 3": (
        lambda: kernels.attention(t(1, 3, 4, 8), t(1, 2, 4, 8), t(1, 2, 4, 8))
    ),
    "quantized_matmul: scheme must be one of ('int8_dynamic', 'int8_weight_only', 'fp8_tensor', "
    "'fp8_row'), not 'int4'": (
        lambda: kernels.quantized_matmul(t(3, 8), t(5, 8, dtype=torch.int8), t(5), "int4")
    ),
    "quantized_matmul: fp8_row needs a torch.float8_e4m3fn weight with torch.float32 scales, as "
    "quantize_weight returns them, not torch.int8 and torch.float32": (
        lambda: kernels.quantized_matmul(t(3, 8), t(5, 8, dtype=torch.int8), t(5), "fp8_row")
    ),
    "quantized_matmul: expected x [..., K] and a weight [N, K] that is not empty, but got (3, 7) "
    "and (5, 8)": (lambda: kernels.quantized_matmul(t(3, 7), t(5, 8, dtype=torch.int8), t(5))),
    "quantized_matmul: with int8_dynamic and a weight (5, 8) scale must be (5,), but is ()": (
        lambda: kernels.quantized_matmul(t(3, 8), t(5, 8, dtype=torch.int8), t())
    ),
    "quantized_matmul: weight and scale get no gradient, but one of them requires it; detach "
    "them": (
        lambda: kernels.quantized_matmul(t(3, 8), t(5, 8, dtype=torch.int8), t(5).requires_grad_())
    ),
    "attention: q, k and v must have one dtype, but are torch.float32, torch.float16, "
    "torch.float32": (
        lambda: kernels.attention(t(1, 2, 4, 8), t(1, 2, 4, 8, dtype=torch.float16), t(1, 2, 4, 8))
    ),
    "attention: with a causal mask the number of keys must be at least the number of queries, 5, "
    "but is 4": (lambda: kernels.attention(t(1, 2, 5, 8), t(1, 2, 4, 8), t(1, 2, 4, 8))),
    "attention: the head dimension must not be 0, but got q (1, 2, 4, 0), k (1, 2, 4, 0), v (1, 2, "
    "4, 0)": (lambda: kernels.attention(t(1, 2, 4, 0), t(1, 2, 4, 0), t(1, 2, 4, 0))),
    "attention: window must be at least 1 key, but is 0": (
        lambda: kernels.attention(t(1, 2, 4, 8), t(1, 2, 4, 8), t(1, 2, 4, 8), window=0)
    ),
    "attention: kv_length must be an integer tensor, [], [1] or [1, 4], but is (3,) torch.int64": (
        lambda: kernels.attention(
            t(1, 2, 4, 8), t(1, 2, 4, 8), t(1, 2, 4, 8), kv_length=t(3, dtype=torch.int64)
        )
    ),
    "adaptive_attention: expected q [B, H, S, D] and k, v [B, G, T, D] with G dividing H, but got "
    "q (1, 3, 4, 8), k (1, 2, 4, 8), v (1, 2, 4, 8)": (
        lambda: kernels.adaptive_attention(t(1, 3, 4, 8), t(1, 2, 4, 8), t(1, 2, 4, 8))
    ),
    "adaptive_attention: the head dimension must not be 0, but got q and k of (1, 2, 4, 0) and "
    "(1, 2, 4, 0)": (
        lambda: kernels.adaptive_attention(t(1, 2, 4, 0), t(1, 2, 4, 0), t(1, 2, 4, 0))
    ),
    "adaptive_attention: q, k and v must have one dtype, but are torch.float32, torch.float16, "
    "torch.float32": (
        lambda: kernels.adaptive_attention(
            t(1, 2, 4, 8), t(1, 2, 4, 8, dtype=torch.float16), t(1, 2, 4, 8)
        )
    ),
    "adaptive_attention: with a causal mask the number of keys must be at least the number of "
    "queries, 5, but is 4": (
        lambda: kernels.adaptive_attention(t(1, 2, 5, 8), t(1, 2, 4, 8), t(1, 2, 4, 8))
    ),
    "adaptive_attention: rank must be an integer tensor [2], one number per key head, but is (3,) "
    "torch.int64": (
        lambda: kernels.adaptive_attention(
            t(1, 2, 4, 8), t(1, 2, 4, 8), t(1, 2, 4, 8), t(3, dtype=torch.int64)
        )
    ),
    "adaptive_attention: precision must be an integer tensor [2], one number per key head, but is "
    "(2,) torch.float32": (
        lambda: kernels.adaptive_attention(t(1, 2, 4, 8), t(1, 2, 4, 8), t(1, 2, 4, 8), None, t(2))
    ),
    "adaptive_attention: all tensors must be on one device, but the first is on cpu and rank on "
    "meta": (
        lambda: kernels.adaptive_attention(
            t(1, 2, 4, 8), t(1, 2, 4, 8), t(1, 2, 4, 8), t(2, dtype=torch.int64, device="meta")
        )
    ),
    "attention: expected q [B, H, S, D] and k, v [B, G, T, D], but got q (2, 4, 8), "
    "k (2, 4, 8), v (2, 4, 8)": (lambda: kernels.attention(t(2, 4, 8), t(2, 4, 8), t(2, 4, 8))),
    "token_router: expected x [B, S, D] and score [B, S], but got (2, 9, 8) and (2, 8)": (
        lambda: kernels.token_router(t(2, 9, 8), t(2, 8), 3)
    ),
    "token_router: k must be from 1 to the length of a sequence, 9, but is 10": (
        lambda: kernels.token_router(t(2, 9, 8), t(2, 9), 10)
    ),
    "token_router: score must be float16, bfloat16, float32 or float64, not torch.int64": (
        lambda: kernels.token_router(t(2, 9, 8), t(2, 9, dtype=torch.int64), 3)
    ),
    "token_scatter: expected x [B, S, D] and update [B, K, D] with K up to S, but got (2, 9, 8) "
    "and (2, 10, 8)": (lambda: kernels.token_scatter(t(2, 9, 8), t(2, 10, 8), t(2, 10), t(2, 10))),
    "token_scatter: weight and index must be [B, K] = (2, 3), but are (2, 3) and (2, 4)": (
        lambda: kernels.token_scatter(t(2, 9, 8), t(2, 3, 8), t(2, 3), t(2, 4))
    ),
    "token_scatter: index must be torch.int64, not torch.float32": (
        lambda: kernels.token_scatter(t(2, 9, 8), t(2, 3, 8), t(2, 3), t(2, 3))
    ),
    "moe_gating: k must be from 1 to the number of experts, 4, but is 5": (
        lambda: kernels.moe_gating(t(3, 8), t(4, 8), 5)
    ),
    "moe_gating: k must be from 1 to the number of experts, 4, but is 0": (
        lambda: kernels.moe_gating(t(3, 8), t(4, 8), 0)
    ),
    "moe_gating: expected x [..., H] and weight [E, H], but got (3, 8) and (4, 7)": (
        lambda: kernels.moe_gating(t(3, 8), t(4, 7), 2)
    ),
    "moe_gating: for x (3, 8) and weight (4, 8) noise must be (3, 4), but is (3, 8)": (
        lambda: kernels.moe_gating(t(3, 8), t(4, 8), 2, noise=t(3, 8))
    ),
    "moe_gating: weight must be float16, bfloat16, float32 or float64, not torch.int64": (
        lambda: kernels.moe_gating(t(3, 8), t(4, 8, dtype=torch.int64), 2)
    ),
    "moe_experts: expected x [..., D] and index [..., K], but got (3, 8) and (4, 2)": (
        lambda: kernels.moe_experts(t(3, 8), *chosen(4, 2), GATE, GATE, DOWN)
    ),
    "moe_experts: index must be torch.int64 and weight of its shape, but are (3, 2) torch.float32 "
    "and (3, 2)": lambda: kernels.moe_experts(t(3, 8), t(3, 2), t(3, 2), GATE, GATE, DOWN),
    "moe_experts: for x [..., 8] expected gate [E, F, 8] and down [E, 8, F], but got (4, 6, 8) and "
    "(4, 6, 8)": lambda: kernels.moe_experts(t(3, 8), *chosen(3, 2), GATE, GATE, GATE),
    "moe_experts: for x [..., 8] expected gate [E, 2 F, 8] and down [E, 8, F], but got (4, 6, 8) "
    "and (4, 8, 6)": lambda: kernels.moe_experts(t(3, 8), *chosen(3, 2), GATE, None, DOWN),
    "moe_experts: gate and up must have one shape, but are (4, 6, 8) and (4, 12, 8); pass None for "
    "up if both are in gate": (
        lambda: kernels.moe_experts(t(3, 8), *chosen(3, 2), GATE, t(4, 12, 8), DOWN)
    ),
    "moe_experts: a token must choose from 1 to the number of experts, 4, but index has 5": (
        lambda: kernels.moe_experts(t(3, 8), *chosen(3, 5), GATE, GATE, DOWN)
    ),
    "moe_experts: x and the experts must have one dtype, but have torch.float16, torch.float32, "
    "torch.float32, torch.float32": (
        lambda: kernels.moe_experts(t(3, 8).half(), *chosen(3, 2), GATE, GATE, DOWN)
    ),
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_a_mistake_is_told_in_one_sentence_with_its_values(sentence):
    with pytest.raises(Mistake) as caught:
        MISTAKES[sentence]()
    assert str(caught.value) == sentence


@pytest.mark.parametrize("name", kernels.OPS)
def test_every_operator_refuses_integers_where_it_has_a_gradient(name):
    """Integers have no gradient. A new operator needs no row in the table above."""
    op = kernels.OPS[name]
    inputs = op.inputs(op.cases[0], torch.device("cpu"), torch.float32, 0)
    for wrong in op.gradients:
        if inputs.get(wrong) is not None:
            with pytest.raises(Mistake, match=rf"^{name}: "):
                op.function(**inputs | {wrong: inputs[wrong].long()})


def test_a_norm_that_may_overflow_before_its_factor_is_left_to_torch():
    """In FP16, 40,000 times a weight of 2 is infinite, and its norm is not."""
    x, weight, norm = (torch.full(size, v, dtype=torch.float16)
                       for size, v in (((2, 8), 4e4), ((5, 8), 0.1), ((8,), 2.0)))  # fmt: skip
    assert "overflow" in kernels.OPS["fused_linear"].implementations["triton"].refuses(
        x, weight, norm, None, False, 1e-5
    )
    y = kernels.fused_linear(x, weight, norm, eps=1e-5)
    torch.testing.assert_close(y, torch.full_like(y, 1.6), rtol=1e-2, atol=0)


@pytest.mark.parametrize("rows", [1, 16, 17, 64, 65, 127, 128, 1000])
@pytest.mark.parametrize("parts", [{"gated": True}, {"norm": True, "residual": True}, {}])
def test_fused_linear_layers_by_triton_take_any_number_of_rows(rows, parts):
    """A model that decodes by Triton also reads prompts, on any GPU."""
    op = kernels.OPS["fused_linear"]
    case = kernels.Case("rows", {"rows": rows, "k": 24, "n": 10} | parts)
    inputs = op.inputs(case, torch.device("cpu"), torch.bfloat16, 0)
    assert op.implementations["triton"].refuses(*inputs.values()) is None
