"""Triton kernels of the gated norm, forward and backward.

A group is split into equal pieces: in one block of the next power of two, up to half of the lanes
would have no channel. Tuples hold a block for each piece, all in registers.
"""

# mypy: disable-error-code="assignment"
# A tuple that grows has another type at each step.

from __future__ import annotations

from kernels._gated import activate
from kernels.core.launch import launcher
from kernels.core.triton_helpers import tl, triton


@triton.jit
def gated_rms_norm_forward_kernel(
    x_ptr,
    z_ptr,
    weight_ptr,
    y_ptr,
    r_ptr,
    n_rows,
    n_groups,
    x_stride,
    z_stride,
    E: tl.constexpr,
    EPS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    KEEP: tl.constexpr,
    ROWS: tl.constexpr,
    PIECES: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    i_g = (tl.program_id(0) % n_groups).to(tl.int64)
    o_n = (tl.program_id(0) // n_groups).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    m_n = o_n < n_rows
    o_e = tl.arange(0, BLOCK_E)
    b_xs = ()
    b_zs = ()
    b_ws = ()
    for i in tl.static_range(PIECES):
        o_c = i_g * E + i * BLOCK_E + o_e
        m_e = i * BLOCK_E + o_e < E
        m = m_n[:, None] & m_e[None, :]
        b_x = tl.load(x_ptr + o_n[:, None] * x_stride + o_c[None, :], mask=m, other=0.0)
        b_z = tl.load(z_ptr + o_n[:, None] * z_stride + o_c[None, :], mask=m, other=0.0)
        b_xs += (b_x,)
        b_zs += (b_z,)
        if HAS_WEIGHT:  # before the sums, so that all arrive at the same time
            b_w = tl.load(weight_ptr + o_c, mask=m_e, other=0.0)
            b_ws += (b_w[None, :],)
    b_hs = ()
    b_squares = tl.zeros([ROWS, BLOCK_E], dtype=tl.float32)
    for i in tl.static_range(PIECES):
        b_s, _ = activate(b_zs[i].to(tl.float32), "silu")
        b_h = b_xs[i].to(tl.float32) * b_s
        b_squares += b_h * b_h
        b_hs += (b_h,)
    b_r = tl.rsqrt(tl.sum(b_squares, axis=1) / E + EPS)
    if KEEP:
        tl.store(r_ptr + o_n * n_groups + i_g, b_r, mask=m_n)
    for i in tl.static_range(PIECES):
        o_c = i_g * E + i * BLOCK_E + o_e
        m_e = i * BLOCK_E + o_e < E
        b_y = b_hs[i] * b_r[:, None]
        if HAS_WEIGHT:
            b_y *= b_ws[i].to(tl.float32)
        p_y = y_ptr + o_n[:, None] * (E * n_groups) + o_c[None, :]
        tl.store(p_y, b_y, mask=m_n[:, None] & m_e[None, :])


launch_forward = launcher(gated_rms_norm_forward_kernel)


@triton.jit
def gated_rms_norm_backward_kernel(
    dy_ptr,
    x_ptr,
    z_ptr,
    weight_ptr,
    r_ptr,
    dx_ptr,
    dz_ptr,
    partial_ptr,
    n_rows,
    n_groups,
    dy_stride,
    x_stride,
    z_stride,
    E: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    ROWS: tl.constexpr,
    PIECES: tl.constexpr,
    BLOCK_E: tl.constexpr,
    STAGES: tl.constexpr,
):
    # Each program walks over rows of one group with the stride of the grid and keeps its partial
    # dweight in registers, so that it is written once per program and not once per row.
    i_p = tl.program_id(0)
    i_g = tl.program_id(1).to(tl.int64)
    d_stride = tl.cast(E * n_groups, tl.int64)
    o_e = tl.arange(0, BLOCK_E)
    b_ws = ()
    b_dws = ()
    if HAS_WEIGHT:
        for i in tl.static_range(PIECES):
            p_w = weight_ptr + i_g * E + i * BLOCK_E + o_e
            b_w = tl.load(p_w, mask=i * BLOCK_E + o_e < E, other=0.0)
            b_ws += (b_w[None, :],)
            b_dws += (tl.zeros([ROWS, BLOCK_E], dtype=tl.float32),)
    for start in tl.range(i_p * ROWS, n_rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        o_n = start + tl.arange(0, ROWS).to(tl.int64)
        m_n = o_n < n_rows
        b_xs = ()
        b_zs = ()
        b_gs = ()
        for i in tl.static_range(PIECES):
            o_c = i_g * E + i * BLOCK_E + o_e
            m = m_n[:, None] & (i * BLOCK_E + o_e < E)[None, :]
            b_x = tl.load(x_ptr + o_n[:, None] * x_stride + o_c[None, :], mask=m, other=0.0)
            b_z = tl.load(z_ptr + o_n[:, None] * z_stride + o_c[None, :], mask=m, other=0.0)
            b_g = tl.load(dy_ptr + o_n[:, None] * dy_stride + o_c[None, :], mask=m, other=0.0)
            b_xs += (b_x,)
            b_zs += (b_z,)
            b_gs += (b_g,)
        b_r = tl.load(r_ptr + o_n * n_groups + i_g, mask=m_n, other=0.0)[:, None]
        b_ss = ()
        b_slopes = ()
        b_normed = ()
        b_scaled = ()
        b_sums = ()
        b_products = tl.zeros([ROWS, BLOCK_E], dtype=tl.float32)
        for i in tl.static_range(PIECES):
            b_s, b_slope = activate(b_zs[i].to(tl.float32), "silu")
            b_x = b_xs[i].to(tl.float32)
            b_g = b_gs[i].to(tl.float32)
            b_n = b_x * b_s * b_r
            if HAS_WEIGHT:
                b_sums += (b_dws[i] + b_g * b_n,)
                b_g *= b_ws[i].to(tl.float32)
            b_products += b_g * b_n
            b_ss += (b_s,)
            b_slopes += (b_x * b_slope,)
            b_normed += (b_n,)
            b_scaled += (b_g,)
        b_dws = b_sums
        b_mean = tl.sum(b_products, axis=1)[:, None] / E
        for i in tl.static_range(PIECES):
            o_c = i_g * E + i * BLOCK_E + o_e
            m = m_n[:, None] & (i * BLOCK_E + o_e < E)[None, :]
            b_dh = (b_scaled[i] - b_normed[i] * b_mean) * b_r
            o_d = o_n[:, None] * d_stride + o_c[None, :]
            tl.store(dx_ptr + o_d, b_dh * b_ss[i], mask=m)
            tl.store(dz_ptr + o_d, b_dh * b_slopes[i], mask=m)
    if HAS_WEIGHT:
        for i in tl.static_range(PIECES):
            p_partial = partial_ptr + i_p * d_stride + i_g * E + i * BLOCK_E + o_e
            tl.store(p_partial, tl.sum(b_dws[i], axis=0), mask=i * BLOCK_E + o_e < E)


launch_backward = launcher(gated_rms_norm_backward_kernel)
