"""Triton kernels that run before and after attention's backward kernels for Hopper.

Before: put normalisers and row sums in the order in which those read rows. After: sum gradients
that several programs made, always in the same order.
"""

from kernels.core.launch import launcher
from kernels.core.triton_helpers import tl, triton


@triton.jit
def attention_pack_rows_kernel(
    out_ptr, dout_ptr, lse_ptr, packed_ptr, delta_ptr, length, stride,
    out_batch, out_head, out_token, dout_batch, dout_head, dout_token,
    GROUPS: tl.constexpr, R: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Compute row sums of ``out dout``, and copy normalisers, in the order of the packed rows."""
    n_blocks = tl.cdiv(stride, ROWS)
    i_bg = (tl.program_id(0) // n_blocks).to(tl.int64)
    i_b, i_g = i_bg // GROUPS, i_bg % GROUPS
    o_m = tl.program_id(0) % n_blocks * ROWS + tl.arange(0, ROWS)
    o_s, o_h = (o_m // R).to(tl.int64), i_g * R + o_m % R
    o_d = tl.arange(0, D)
    m_m = o_s < length
    p_out = out_ptr + i_b * out_batch + (o_h * out_head + o_s * out_token)[:, None] + o_d[None, :]
    p_do = dout_ptr + i_b * dout_batch + (o_h * dout_head + o_s * dout_token)[:, None]
    b_out = tl.load(p_out, mask=m_m[:, None], other=0.0).to(tl.float32)
    b_do = tl.load(p_do + o_d[None, :], mask=m_m[:, None], other=0.0).to(tl.float32)
    b_lse = tl.load(lse_ptr + (i_b * GROUPS * R + o_h) * length + o_s, mask=m_m, other=0.0)
    tl.store(packed_ptr + i_bg * stride + o_m, b_lse, mask=o_m < stride)
    tl.store(delta_ptr + i_bg * stride + o_m, tl.sum(b_out * b_do, axis=1), mask=o_m < stride)


@triton.jit(do_not_specialize=["batch", "keys"])
def attention_add_parts_kernel(
    parts_ptr, dk_ptr, dv_ptr, batch, keys,
    dk_batch, dk_head, dk_token, dv_batch, dv_head, dv_token,
    KEY_HEADS: tl.constexpr, SPLIT: tl.constexpr, D: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Sum gradients of keys and values from parts [2, batch, KEY_HEADS, SPLIT, keys, D]."""
    n_blocks = tl.cdiv(keys, N)
    i_bg = (tl.program_id(0) // n_blocks).to(tl.int64)
    i_b, i_g = i_bg // KEY_HEADS, i_bg % KEY_HEADS
    o_n = (tl.program_id(0) % n_blocks * N + tl.arange(0, N)).to(tl.int64)
    o_d = tl.arange(0, D)
    m_n = (o_n < keys)[:, None]
    o_part = o_n[:, None] * D + o_d[None, :]
    is_values = tl.program_id(1)
    i_part = (is_values * batch * KEY_HEADS + i_bg) * SPLIT
    b_sum = tl.zeros((N, D), dtype=tl.float32)
    for i in tl.static_range(SPLIT):
        p_part = parts_ptr + (i_part + i) * keys * D + o_part
        b_sum += tl.load(p_part, mask=m_n, other=0.0)
    if is_values == 0:
        p_dk = dk_ptr + i_b * dk_batch + i_g * dk_head + (o_n * dk_token)[:, None] + o_d[None, :]
        tl.store(p_dk, b_sum.to(dk_ptr.dtype.element_ty), mask=m_n)
    else:
        p_dv = dv_ptr + i_b * dv_batch + i_g * dv_head + (o_n * dv_token)[:, None] + o_d[None, :]
        tl.store(p_dv, b_sum.to(dv_ptr.dtype.element_ty), mask=m_n)


launch_pack_rows = launcher(attention_pack_rows_kernel)
launch_add_parts = launcher(attention_add_parts_kernel)
