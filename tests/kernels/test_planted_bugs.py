"""The generic checks detect planted bugs: each is put into a kernel's source, and they fail."""

import sys

import pytest
import torch
from planting import DECODING_BUGS, LOSS_BUGS, STATE_BUGS, lost_results, plant
from subjects import DEVICE, DTYPES

import kernels
from kernels import Case
from kernels.core import launch
from kernels.core.check import Exact
from kernels.core.triton_helpers import INSTALLED, INTERPRETED

# Operator and bug: module, the original source, the planted source, and the sizes of the case that
# shows it (None: the operator's first case), in FP16 with "half".
HEADS = {"batch": 1, "length": 3, "heads": 3, "kv_heads": 1, "dim": 12}
ATTENTION = {
    "batch": 1, "length": 9, "heads": 2, "kv_heads": 1, "dim": 16, "keys": 9, "causal": True,
    "window": None,
}  # fmt: skip
CONV = {"batch": 1, "length": 5, "dim": 3, "width": 4}
SSD = "kernels.ssd_scan._kernels"
SSD_BACK = "kernels.ssd_scan._gradient_kernels"
STEP = "kernels.ssd_step._kernels"
STEP_SIZES = {"batch": 2, "heads": 4, "dim": 33, "groups": 2, "states": 100}
STEP_FEW = {"batch": 2, "heads": 4, "dim": 9, "groups": 2, "states": 20}
SCAN = {"batch": 1, "length": 70, "heads": 4, "dim": 3, "groups": 2, "states": 4}
SEGMENTS = {"batch": 1, "length": 150, "heads": 1, "dim": 3, "groups": 1, "states": 4}
FLASH = "kernels.attention._flash_kernels"
RANKS = ATTENTION | {"heads": 4, "kv_heads": 2, "ranks": [5, 9], "bits": None, "allow_fp8": False}
FP8 = RANKS | {"bits": [8, 32], "allow_fp8": True}
ADAPTIVE = "kernels.adaptive_attention._kernels"
ROUTER = "kernels.token_router"
GATING, CHOICE = "kernels.moe_gating", "kernels.moe_gating._kernels"
NORM = "kernels.rms_norm._kernels"
EXPERTS = "kernels.moe_experts._products"
MIXTURE = {"rows": 9, "dim": 5, "width": 6, "experts": 2, "k": 2}
TOKENS = {"batch": 2, "length": 9, "dim": 5, "k": 4}
BUGS = {
    "rms_norm: eps outside the root": (
        NORM, "tl.rsqrt(tl.sum(b_x * b_x, axis=1) / D + EPS)",
        "1 / (tl.sqrt(tl.sum(b_x * b_x, axis=1) / D) + EPS)", {"rows": 5, "dim": 9, "eps": 0.1},
    ),
    "rms_norm: the last row is left out": (
        NORM, "m_n = o_n < n_rows\n    x_ptr", "m_n = o_n < n_rows - 1\n    x_ptr", None,
    ),
    "rms_norm: the mean is missing from dx": (
        NORM, "(b_g - b_n * b_mean) * b_r", "b_g * b_r", None,
    ),
    "rms_norm: only the first rows of a program reach dweight": (
        NORM, "b_dw += b_g * b_n", "b_dw = b_g * b_n", {"rows": 300, "dim": 70},
    ),
    "rms_norm: weight is missing from dx": (
        NORM, "b_g *= b_w", "b_g *= 1.0", None,
    ),
    **DECODING_BUGS,
    **LOSS_BUGS,
    **STATE_BUGS,
    "swiglu: the second term of dgate is missing": (
        "kernels._gated", "slope = s + y * (1 - s)\n", "slope = s\n", None,
    ),
    "swiglu: gate and up are exchanged in the packed tensor": (
        "kernels._gated", "up_ptr = gate_ptr + n_columns\n    o_c",
        "up_ptr = gate_ptr\n        gate_ptr += n_columns\n    o_c",
        {"rows": 3, "dim": 5, "packed": True},
    ),
    "swiglu: the last column is left out": (
        "kernels._gated", "m_c = o_c < n_columns - i_c\n    b_dy",
        "m_c = o_c < n_columns - i_c - 1\n    b_dy",
        {"rows": 3, "dim": 1001, "packed": True},
    ),
    "geglu: the derivative of the Gaussian is missing": (
        "kernels._gated", "slope = s + x * 0.3989422804014327 * bell", "slope = s",
        {"rows": 3, "dim": 5},
    ),
    "geglu: the tail that 16 bits are served with lacks a term": (
        "kernels._gated", "(tail * t + 0.127414796) * t", "tail * t * t",
        {"rows": 3, "dim": 5, "half": True},
    ),
    "geglu: the tail that 16 bits are served with is that of the other side": (
        "kernels._gated", "tl.where(x < 0, tail, 1 - tail)", "tl.where(x > 0, tail, 1 - tail)",
        {"rows": 3, "dim": 5, "half": True},
    ),
    "geglu: the derivative of the tanh form lacks its cubic term": (
        "kernels._gated", "(1 + 0.134145 * x * x)", "(1 + 0.0 * x)", None,
    ),
    "add_rms_norm: the gradient of the sum is forgotten": (
        NORM, "b_dx += tl.load(p_dsum, mask=m, other=0.0).to(tl.float32)",
        "b_dx += 0.0", None,
    ),
    "add_rms_norm: the residual is not added": (
        NORM, "b_x += tl.load(residual_ptr", "b_x += 0 * tl.load(residual_ptr", None,
    ),
    "rms_norm: only the last step of a row counts in its norm": (
        NORM, "b_squares += b_x * b_x", "b_squares = b_x * b_x", {"rows": 257, "dim": 1030},
    ),
    "rope: the backward pass rotates forward": (
        "kernels._qk_kernels", "b_sin = -b_sin", "b_sin = b_sin", HEADS,
    ),
    "rope: the offset is forgotten": (
        "kernels._qk_kernels", "position = i_s + offset\n", "position = i_s\n",
        HEADS | {"offset": 4},
    ),
    "rope: the offset in memory is forgotten": (
        "kernels._qk_kernels", "position = i_s + tl.load(offset_ptr)\n", "position = i_s\n",
        HEADS | {"offset": 4, "on_device": True},
    ),
    "rope: a full interleaved table is read as a half one": (
        "kernels._qk", "step = 2 if interleaved and width == dim else 1", "step = 1",
        HEADS | {"interleaved": True, "full": True},
    ),
    "qk_norm: the mean is missing from dx": (
        "kernels._qk_kernels", "b_ga = (b_ga - b_a * b_mean) * b_r", "b_ga = b_ga * b_r", HEADS,
    ),
    "qk_norm: the weights' gradient keeps only the last tile of heads": (
        "kernels._qk_kernels", "b_dwa += b_ga * b_a", "b_dwa = b_ga * b_a",
        HEADS | {"heads": 70},
    ),
    "qk_norm_rope: the gradient is not rotated back": (
        "kernels._qk_kernels", "b_t = b_ga * b_cos + b_gb * b_sin", "b_t = b_ga", HEADS,
    ),
    "qk_norm_rope: the norm comes after the rotation": (
        "kernels._qk_kernels", "b_a *= b_r * b_wa\n            b_b *= b_r * b_wb",
        "b_a *= b_r * b_wb\n            b_b *= b_r * b_wa", HEADS,
    ),
    "attention: the diagonal is not seen": (
        FLASH, "m = m & (o_k <= o_p)", "m = m & (o_k < o_p)", None,
    ),
    "attention: the window is one key too wide": (
        FLASH, "m = m & (o_k > o_p - window)", "m = m & (o_k >= o_p - window)",
        ATTENTION | {"window": 3},
    ),
    "attention: the sum is not shrunk to the new maximum": (
        FLASH, "b_l = b_l * b_shrink + tl.sum(b_p, axis=1)", "b_l = b_l + tl.sum(b_p, axis=1)",
        ATTENTION | {"length": 100, "keys": 100},
    ),
    "attention: keys past kv_length are seen": (
        FLASH, "m = (o_k < end) & (o_p >= o_p)", "m = (o_k < end + 1) & (o_p >= o_p)",
        ATTENTION | {"kv_length": 7, "causal": False},
    ),
    "attention: delta is missing from dk": (
        FLASH, "b_ds = b_p * (b_dp - b_delta[None, :])", "b_ds = b_p * b_dp", None,
    ),
    "attention: delta is missing from dq": (
        FLASH, "b_ds = b_p * (b_dp - b_delta[:, None])", "b_ds = b_p * b_dp", None,
    ),
    "attention: dk is not scaled": (FLASH, "b_dk * SCALE", "b_dk * 1.0", None),
    "attention: shares of split keys are merged unweighted": (
        FLASH, "tl.sum(b_part * b_w[:, None], axis=0)", "tl.sum(b_part, axis=0)",
        ATTENTION | {"length": 1, "keys": 600},
    ),
    "adaptive_attention: one column too many": (
        ADAPTIVE, "tl.load(rank_ptr + i_g)", "(tl.load(rank_ptr + i_g) + 1)", RANKS,
    ),
    "adaptive_attention: all heads have the first one's rank": (
        ADAPTIVE, "tl.load(rank_ptr + i_g)", "tl.load(rank_ptr)", RANKS,
    ),
    "adaptive_attention: all heads have the first one's precision": (
        ADAPTIVE, "bits = tl.load(bits_ptr + i_g)", "bits = tl.load(bits_ptr)", FP8,
    ),
    "adaptive_attention: the scale does not follow the rank": (
        ADAPTIVE, "tl.rsqrt(rank.to(tl.float32))", "tl.rsqrt(tl.cast(9, tl.float32))", RANKS,
    ),
    "adaptive_attention: ranks past half the width are forgotten": (
        ADAPTIVE, "            b_acc, b_l, b_m = _attend_at(",
        "            b_acc, b_l, b_m = b_acc, b_l + i, b_m + i\n"
        "        if rank <= BLOCK_D // 2:\n            b_acc, b_l, b_m = _attend_at(",
        RANKS | {"dim": 64, "ranks": [5, 60]},
    ),
    "adaptive_attention: FP8 has a bit less": (ADAPTIVE, "b_ey + 20", "b_ey + 21", FP8),
    "adaptive_attention: keys are not multiplied by their units": (
        FLASH, " * b_unit[None, :]", " * (b_unit[None, :] * 0 + 1)", FP8,
    ),
    "adaptive_attention: the backward pass sees what was not rounded": (
        ADAPTIVE, "b_y * b_unit[:, None], b_x)", "b_x, b_x)", FP8,
    ),
    "adaptive_attention: dq is not scaled": (ADAPTIVE, "b_dq * scale", "b_dq * 1.0", RANKS),
    "adaptive_attention: dk is that of another width": (
        ADAPTIVE, "b_dk * scale, mask=m_kc", "b_dk * scale, mask=m_kc & (o_c < 4)[None, :]", RANKS,
    ),
    "adaptive_attention: gradients past the rank are what memory held": (
        ADAPTIVE, "mask=m_md & (o_d >= rank)", "mask=m_md & (o_d >= D)", RANKS,
    ),
    "graph_diffusion: the graph is transposed": (
        "kernels.graph_diffusion", "o_p = o_m[:, None] * p_column + o_m[None, :] * p_row",
        "o_p = o_m[:, None] * p_row + o_m[None, :] * p_column", None,
    ),
    "graph_diffusion: the start is lost from the gradient": (
        "kernels.graph_diffusion", "b_h += b_sum", "b_h += 0.0", None,
    ),
    "graph_diffusion: slopes and states are paired in the same order": (
        "kernels.graph_diffusion", "STEPS - 1 - s if BACKWARD else s", "s", None,
    ),
    "gated_rms_norm: the gate comes after the norm": (
        "kernels.gated_rms_norm._kernels", "b_squares += b_h * b_h",
        "b_squares += b_xs[i].to(tl.float32) * b_xs[i]", None,
    ),
    "gated_rms_norm: every group is normalised by the first one's mean": (
        "kernels.gated_rms_norm._kernels", "b_r = tl.load(r_ptr + o_n * n_groups + i_g, mask",
        "b_r = tl.load(r_ptr + o_n * n_groups, mask", {"rows": 3, "dim": 12, "group": 4},
    ),
    "gated_rms_norm: the gate's slope lacks its second term": (
        "kernels.gated_rms_norm._kernels", "(b_x * b_slope,)",
        "(b_x * tl.sigmoid(b_zs[i].to(tl.float32)),)", None,
    ),
    "gated_rms_norm: the mean is missing from dx and dz": (
        "kernels.gated_rms_norm._kernels", "(b_scaled[i] - b_normed[i] * b_mean) * b_r",
        "b_scaled[i] * b_r", None,
    ),
    "gated_rms_norm: only a row's last piece counts in its norm": (
        "kernels.gated_rms_norm._kernels", "b_squares += b_h * b_h", "b_squares = b_h * b_h",
        {"rows": 2, "dim": 600},
    ),
    "gated_rms_norm: only a row's last piece counts in the gradient's mean": (
        "kernels.gated_rms_norm._kernels", "b_products += b_g * b_n", "b_products = b_g * b_n",
        {"rows": 2, "dim": 600},
    ),
    "gated_rms_norm: only the last rows of a program reach dweight": (
        "kernels.gated_rms_norm._kernels", "(b_dws[i] + b_g * b_n,)", "(b_g * b_n,)",
        {"rows": 300, "dim": 70},
    ),
    "causal_conv1d: the row before a stretch is forgotten": (
        "kernels.causal_conv1d._kernels",
        "b_p = b_bias + b_3 * b_w3 + b_2 * b_w2 + b_1 * b_w1 + b_a * b_w0\n        _store",
        "b_p = b_bias + b_2 * b_w2 + b_1 * b_w1 + b_a * b_w0\n        _store", CONV,
    ),
    "causal_conv1d: the state is read one place too late": (
        "kernels.causal_conv1d._kernels", "state_ptr + o_d * W + W + t, mask=m, other",
        "state_ptr + o_d * W + W + t - 1, mask=m, other", CONV,
    ),
    "causal_conv1d: the slope of SiLU is forgotten": (
        "kernels.causal_conv1d._kernels", "b_u *= b_slope", "b_u *= 1.0", CONV,
    ),
    "causal_conv1d: rows past the stretch count in dweight twice": (
        "kernels.causal_conv1d._kernels", "if step < STRETCH:", "if step < STRETCH + 4:",
        CONV | {"length": 18, "state": False},
    ),
    "causal_conv1d: the final state has no gradient": (
        "kernels.causal_conv1d._kernels",
        "b_dx += tl.load(dfinal_ptr + o_d * W + w, mask=m_final, other=0.0).to(tl.float32)",
        "b_dx += 0.0", CONV,
    ),
    "causal_conv1d: the state's gradient is written one place too late": (
        "kernels.causal_conv1d._kernels", "dstate_ptr + o_d * W + W + t, b_dx",
        "dstate_ptr + o_d * W + W + t - 1, b_dx", CONV,
    ),
    "ssd_scan: a step does not see its own input": (
        SSD, "o_q[:, None] >= o_q[None, :]", "o_q[:, None] > o_q[None, :]", SCAN,
    ),
    "ssd_scan: the state does not decay across a chunk": (
        SSD,
        "b_state *= tl.exp(total.to(WIDE)).to(tl.float32)\n"
        "        b_state = add_dot(b_state, tl.trans(b_u), b_b, PRECISE)",
        "b_state = add_dot(b_state, tl.trans(b_u), b_b, PRECISE)", SCAN,
    ),
    "ssd_scan: the state's gradient does not decay across a chunk": (
        SSD,
        "b_state *= tl.exp(total.to(WIDE)).to(tl.float32)\n"
        "        b_state = add_dot(b_state, tl.trans(b_u), b_w, PRECISE)",
        "b_state = add_dot(b_state, tl.trans(b_u), b_w, PRECISE)", SCAN,
    ),
    "ssd_scan: only a program's last head reaches dC": (
        SSD_BACK, "b_u += (b_w", "b_u = (b_w", SCAN,
    ),
    "ssd_scan: all heads read the first group": (
        SSD, "c_ptr += i_b * c_batch + i_g * c_group\n    o_steps",
        "c_ptr += i_b * c_batch\n    o_steps", SCAN,
    ),
    "ssd_scan: segments are joined in the wrong order going back": (
        SSD, "n_segments - 1 - step if BACKWARD else step", "step", SEGMENTS,
    ),
    "ssd_scan: a segment begins with what it ends with": (
        SSD, "o_e, b_state, mask=o_e < size", "o_e, b_state + adds[k], mask=o_e < size", SEGMENTS,
    ),
    "ssd_scan: only the first segments are joined": (
        SSD, "range(0, n_segments, TOGETHER)", "range(0, TOGETHER, TOGETHER)", SEGMENTS,
    ),
    "ssd_scan: what passes through a chunk is missing from dA": (
        SSD_BACK, "b_fall += through * tl.exp(total", "b_fall += 0.0 * tl.exp(total",
        SCAN,
    ),
    "ssd_scan: what left of the state before is missing from dA": (
        SSD_BACK, "- b_net + tl.sum(b_from, axis=0)", "- b_net", SCAN,
    ),
    "ssd_scan: the slope of softplus is forgotten": (
        SSD_BACK, "b_ddt *= 1.0 / (1.0 + tl.exp(-b_raw))", "b_ddt *= 1.0", SCAN,
    ),
    "ssd_scan: chunks after this one are missing from dB": (
        SSD_BACK, "b_db = add_dot(b_db, b_late, b_end, PRECISE)", "b_db += 0.0", SCAN,
    ),
    "ssd_scan: dx lacks D": (
        SSD_BACK, "b_dx += b_dy.to(tl.float32) * tl.load(d_ptr + i_h)",
        "b_dx += 0.0 * tl.load(d_ptr + i_h)", SCAN,
    ),
    "ssd_step: the state does not decay": (
        STEP, "b_state *= tl.exp(wide_dt * decay).to(tl.float32)", "b_state *= 1.0", STEP_FEW,
    ),
    "ssd_step: dt is missing from the input": (
        STEP, "(b_x * wide_dt.to(tl.float32))[:, None]", "b_x[:, None]", STEP_FEW,
    ),
    "ssd_step: softplus is forgotten for larger steps": (
        SSD, "tl.where(raw <= 20.0, soft, raw)", "tl.where(raw <= -5.0, soft, raw)", STEP_FEW,
    ),
    "ssd_step: what comes back for the new state is forgotten": (
        STEP, "b_g += tl.load(dnew_ptr", "b_g += 0 * tl.load(dnew_ptr", STEP_FEW,
    ),
    "ssd_step: dx lacks D": (STEP, "b_dx += b_dy * tl.load", "b_dx += 0 * b_dy * tl.load", None),
    "ssd_step: dx is of a whole step": (
        STEP, "b_dx = b_du.to(tl.float32) * dt", "b_dx = b_du.to(tl.float32)", STEP_FEW,
    ),
    "ssd_step: what stayed is missing from ddt": (
        STEP, "ddt = came + stayed * fall * a", "ddt = came + 0 * stayed", STEP_FEW,
    ),
    "ssd_step: the slope of softplus is forgotten": (
        STEP, "ddt *= 1.0 / (1.0 + tl.exp(-raw))", "ddt *= 1.0", STEP_FEW,
    ),
    "ssd_step: the bias gets what A gets": (
        STEP, "tl.store(p_share + 2 * n_heads, ddt", "tl.store(p_share + 2 * n_heads, stayed",
        STEP_FEW,
    ),
    "ssd_step: dA is that of the decay": (
        STEP, "stayed * fall * wide_dt", "stayed * fall", STEP_FEW,
    ),
    "ssd_step: only the last rows reach dD": (
        STEP, "dd += tl.sum", "dd = tl.sum", STEP_SIZES,
    ),
    "ssd_step: only the last rows reach dB": (
        STEP, "b_db += tl.sum", "b_db = tl.sum", STEP_SIZES,
    ),
    "ssd_step: dC sees the state before the step": (
        STEP, "b_new = b_state * fall.to(tl.float32) + b_u * b_b[None, :]", "b_new = b_state",
        STEP_FEW,
    ),
    "ssd_step: heads of a group are not added up": (
        "kernels.ssd_scan._group_sums", "b_sum += tl.load(p_in", "b_sum = tl.load(p_in", STEP_FEW,
    ),
    "ssd_step: the state's gradient does not decay": (
        STEP, "(b_g * fall).to(tl.float32)", "b_g.to(tl.float32)", STEP_FEW,
    ),
    "token_router: of equal scores the last are chosen": (
        ROUTER, "(tl.cumsum(equal, axis=0) <= left)",
        "(tl.cumsum(equal, axis=0) > tl.sum(equal, axis=0) - left)", TOKENS | {"ties": True},
    ),
    "token_router: negative scores are in the order of their magnitude": (
        ROUTER, "b_bits ^ ((b_bits >> 31) & 0x7FFFFFFF)", "b_bits", TOKENS | {"k": 7},
    ),
    "token_router: every sequence gives tokens of the first": (
        ROUTER, "(i_b * source_batch + b_place * source_row)", "(b_place * source_row)", TOKENS,
    ),
    "token_router: tokens left out get the gradient of the first one chosen": (
        ROUTER, "tl.where(m, b_slot, -1)", "tl.where(m, b_slot, 0)", TOKENS,
    ),
    "token_router: the gradient of the scores goes to the first places": (
        ROUTER, "scatter_(1, index, dchosen)", "scatter_(1, index.argsort(-1), dchosen)", TOKENS,
    ),
    "token_scatter: the rest does not pass through": (
        ROUTER, "b_x += tl.load(p_base, mask=m, other=0.0).to(tl.float32)", "b_x += 0.0", TOKENS,
    ),
    "token_scatter: the weight is not multiplied in": (
        ROUTER, "b_x *= b_w.to(tl.float32)[:, None]", "b_x *= 1.0", TOKENS,
    ),
    "token_scatter: the gradient of the update is not weighted": (
        "kernels.token_scatter", "b_w * b_dy, mask", "b_dy, mask", TOKENS,
    ),
    "token_scatter: only the last block of columns reaches the weight's gradient": (
        "kernels.token_scatter", "b_sum += b_update * b_dy", "b_sum = b_update * b_dy",
        TOKENS | {"dim": 1030},
    ),
    "token_scatter: the gradient comes from the first places": (
        "kernels.token_scatter", "b_place * dy_row", "i_k * dy_row", TOKENS,
    ),
    "moe_gating: half of the dimensions are read twice": (
        CHOICE, "start + half * BLOCK_H", "start", None,
    ),
    "moe_gating: an expert is chosen twice": (
        CHOICE, "b_left = tl.where(o_e[None, :] == b_at[:, None], float(\"-inf\"), b_left)",
        "b_left = b_left", None,
    ),
    "moe_gating: weights are not renormalised": (
        CHOICE, "b_weight / b_total[:, None]", "b_weight / b_sum[:, None]", None,
    ),
    "moe_gating: tokens past the last are counted": (
        CHOICE, "& m).to(tl.int32)", "& m_e[None, :]).to(tl.int32)", None,
    ),
    "moe_gating: the gradient of the mean is lost": (
        CHOICE, "dtype=tl.float32) + b_dmean[None, :]", "dtype=tl.float32)", None,
    ),
    "moe_gating: the gradient takes the renormalised weights for independent": (
        CHOICE, "(b_dw - b_dot) / b_total", "b_dw / b_total", None,
    ),
    "moe_gating: the noise is added for the first tokens only": (
        CHOICE, "noise_ptr + o_n[:, None] * E", "noise_ptr + (o_n % 16)[:, None] * E",
        {"rows": 37, "dim": 5, "experts": 9, "k": 2, "noisy": True},
    ),
    "moe_gating: the noise has no gradient": (
        GATING, "dnoise = dlogits.view(shape)", "dnoise = 0 * dlogits.view(shape)",
        {"rows": 37, "dim": 5, "experts": 9, "k": 2, "noisy": True},
    ),
    "moe_gating: the softmax's gradient lacks its sum": (
        CHOICE, "b_p * (b_dp - tl.sum(b_p * b_dp, axis=1)[:, None])", "b_p * b_dp", None,
    ),
    "moe_experts: the gate is not activated": (
        EXPERTS, "b_gate * sigmoid(b_gate) * b_up", "b_gate * b_up", MIXTURE,
    ),
    "moe_experts: choices are taken for tokens": (
        EXPERTS, "o_n = (tl.load(order_ptr + o_m) // K)", "o_n = (tl.load(order_ptr + o_m) % K)",
        MIXTURE,
    ),
    "moe_experts: only the last choice of a token counts": (
        EXPERTS, "b_sum += b_w[:, None] * b_here", "b_sum = b_w[:, None] * b_here", MIXTURE,
    ),
    "moe_experts: dx comes back through the gate only": (
        EXPERTS, "tl.static_range(2 if TWO else 1)", "tl.static_range(1)", MIXTURE,
    ),
    "moe_experts: the gradient before the activation is not weighted": (
        EXPERTS, "b_dh *= b_weight", "b_dh *= 1.0", MIXTURE,
    ),
    "moe_experts: the weight's gradient is weighted": (
        EXPERTS, "b_sum += b_y * b_up * b_dh", "b_sum += b_weight * b_y * b_up * b_dh", MIXTURE,
    ),
    "moe_experts: the slope of the activation lacks a term": (
        EXPERTS, "(b_s + b_y * (1 - b_s))", "b_s", MIXTURE,
    ),
    "moe_experts: only the first rows of an expert reach its gradient": (
        EXPERTS, "for start in range(first, end, BLOCK)",
        "for start in range(first, first + 1, BLOCK)",
        MIXTURE | {"rows": 40},
    ),
}  # fmt: skip
BUGS |= lost_results({bug.partition(":")[0] for bug in BUGS})
# A GPU has a program for each block of so few rows, each head and each chunk.
ACROSS_BLOCKS = {
    "rms_norm: only the first rows of a program reach dweight",
    "gated_rms_norm: only the last rows of a program reach dweight",
    "ssd_scan: the state does not decay across a chunk",
    "ssd_scan: the state's gradient does not decay across a chunk",
    "ssd_scan: only a program's last head reaches dC",
}


@pytest.fixture(autouse=True)
def nothing_planted_is_kept():
    """Clear caches after the planted bugs are gone."""
    yield
    launch.forget()


def check(operator: str, sizes) -> bool:
    """Return True if the generic check accepts the operator's Triton implementation."""
    op = kernels.OPS[operator]
    case = Case("planted", sizes) if sizes else op.cases[0]
    dtype = torch.float16 if case.sizes.get("half") else DTYPES[0]
    exact = Exact(op, op.inputs(case, DEVICE, dtype, 0))
    return all(c.right for c in exact.compare(op.implementations["triton"]))


right: set[tuple[str, str]] = set()


@pytest.mark.sample(75)
@pytest.mark.skipif(not INTERPRETED and DEVICE.type == "cpu", reason="needs Triton to run")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.replace(": ", "-"))
def test_a_planted_bug_turns_the_generic_check_red(bug, monkeypatch):
    if bug in ACROSS_BLOCKS and not INTERPRETED:
        pytest.skip("on a GPU no program of this case has a second block, where the bug would be")
    module_name, old, new, sizes = BUGS[bug]
    operator = bug.partition(":")[0]
    before = (operator, repr(sizes))
    if before not in right:  # checked once for all bugs that the same sizes show
        assert check(operator, sizes), "right before"
        right.add(before)
    plant(monkeypatch, module_name, old, new)
    assert not check(operator, sizes), "and wrong with the bug"


@pytest.mark.skipif(INTERPRETED or not INSTALLED, reason="needs Triton's own functions")
def test_a_bug_is_planted_also_in_what_kernels_of_others_call_that_were_compiled_before():
    kernel = sys.modules[ADAPTIVE].adaptive_attention_forward_kernel
    before, compiled = kernel.cache_key, kernel.device_caches
    with pytest.MonkeyPatch.context() as monkeypatch:
        plant(monkeypatch, *BUGS["adaptive_attention: keys are not multiplied by their units"][:3])
        assert kernel.cache_key != before and not kernel.device_caches
    assert kernel.cache_key == before and kernel.device_caches is compiled


def test_every_triton_kernel_has_bugs_planted():
    assert BUGS.keys() >= ACROSS_BLOCKS
    tried = {bug.partition(":")[0] for bug in BUGS}
    assert tried == {n for n, op in kernels.OPS.items() if "triton" in op.implementations}
