"""The kernels of the gated norm, forward and backward."""

from __future__ import annotations

from kernels._gated import activate
from kernels._launch import launcher
from kernels._triton import tl, triton


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
    BLOCK_E: tl.constexpr,
):
    i_g = (tl.program_id(0) % n_groups).to(tl.int64)
    o_n = (tl.program_id(0) // n_groups).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    o_e = tl.arange(0, BLOCK_E)
    o_c = i_g * E + o_e
    m_n = o_n < n_rows
    m = m_n[:, None] & (o_e < E)[None, :]
    b_x = tl.load(x_ptr + o_n[:, None] * x_stride + o_c[None, :], mask=m, other=0.0)
    b_z = tl.load(z_ptr + o_n[:, None] * z_stride + o_c[None, :], mask=m, other=0.0)
    b_s, _ = activate(b_z.to(tl.float32), "silu")
    b_h = b_x.to(tl.float32) * b_s
    b_r = tl.rsqrt(tl.sum(b_h * b_h, axis=1) / E + EPS)
    b_y = b_h * b_r[:, None]
    if HAS_WEIGHT:
        b_y *= tl.load(weight_ptr + o_c, mask=o_e < E, other=0.0).to(tl.float32)[None, :]
    if KEEP:
        tl.store(r_ptr + o_n * n_groups + i_g, b_r, mask=m_n)
    tl.store(y_ptr + o_n[:, None] * (E * n_groups) + o_c[None, :], b_y, mask=m)


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
    BLOCK_E: tl.constexpr,
    STAGES: tl.constexpr,
):
    # Each program walks over rows of one group with the stride of the grid and keeps its share of
    # dweight in registers, so that it is written once per program and not once per row.
    i_p = tl.program_id(0)
    i_g = tl.program_id(1).to(tl.int64)
    o_e = tl.arange(0, BLOCK_E)
    o_c = i_g * E + o_e
    m_e = o_e < E
    d_stride = tl.cast(E * n_groups, tl.int64)
    if HAS_WEIGHT:
        b_w = tl.load(weight_ptr + o_c, mask=m_e, other=0.0).to(tl.float32)[None, :]
    b_dw = tl.zeros([ROWS, BLOCK_E], dtype=tl.float32)
    for start in tl.range(i_p * ROWS, n_rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        o_n = start + tl.arange(0, ROWS).to(tl.int64)
        m_n = o_n < n_rows
        m = m_n[:, None] & m_e[None, :]
        b_x = tl.load(x_ptr + o_n[:, None] * x_stride + o_c[None, :], mask=m, other=0.0)
        b_z = tl.load(z_ptr + o_n[:, None] * z_stride + o_c[None, :], mask=m, other=0.0)
        b_g = tl.load(dy_ptr + o_n[:, None] * dy_stride + o_c[None, :], mask=m, other=0.0)
        b_x, b_g = b_x.to(tl.float32), b_g.to(tl.float32)
        b_r = tl.load(r_ptr + o_n * n_groups + i_g, mask=m_n, other=0.0)[:, None]
        b_s, b_slope = activate(b_z.to(tl.float32), "silu")
        b_n = b_x * b_s * b_r
        if HAS_WEIGHT:
            b_dw += b_g * b_n
            b_g *= b_w
        b_mean = tl.sum(b_g * b_n, axis=1)[:, None] / E
        b_dh = (b_g - b_n * b_mean) * b_r
        tl.store(dx_ptr + o_n[:, None] * d_stride + o_c[None, :], b_dh * b_s, mask=m)
        tl.store(dz_ptr + o_n[:, None] * d_stride + o_c[None, :], b_dh * b_x * b_slope, mask=m)
    if HAS_WEIGHT:
        tl.store(partial_ptr + i_p * d_stride + o_c, tl.sum(b_dw, axis=0), mask=m_e)


launch_backward = launcher(gated_rms_norm_backward_kernel)
