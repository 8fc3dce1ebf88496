"""Matrix products over rows grouped by expert. ``_autograd`` launches.

A program that works on rows takes one of the blocks that ``order`` lists (see ``_order``), whose
rows are of one expert. The blocks of one expert run together and share its weights in the cache.
For a missing row of a block its first row is read, and the result is not stored.
"""

from kernels._gated import sigmoid
from kernels.core.launch import launcher
from kernels.core.triton_helpers import tl, triton


@triton.jit
def _block(order_ptr, block_at, n_blocks, i_b, M: tl.constexpr):
    """Load a block's expert (-1: none), its rows, and a mask of those that exist."""
    block_ptr = order_ptr + block_at
    expert = tl.load(block_ptr + i_b).to(tl.int64)
    first = tl.load(block_ptr + n_blocks + i_b)
    end = tl.load(block_ptr + 2 * n_blocks + i_b)
    o_m = (first + tl.arange(0, M)).to(tl.int64)
    m_m = o_m < end
    return expert, tl.where(m_m, o_m, first), m_m


@triton.jit
def moe_experts_hidden_kernel(
    x_ptr, order_ptr, gate_ptr, up_ptr, hidden_ptr, both_ptr, block_at, n_blocks,
    x_row, gate_expert, gate_row, up_expert, up_row,
    D: tl.constexpr, F: tl.constexpr, K: tl.constexpr, KEEP: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute ``hidden`` [rows, F] = silu(x gate^T) (x up^T).

    ``KEEP``: store the two products in ``both`` [rows, 2 F], too.
    """
    n_tiles = tl.cdiv(F, N)
    expert, o_m, m_m = _block(order_ptr, block_at, n_blocks, tl.program_id(0) // n_tiles, M)
    if expert >= 0:
        o_f = (tl.program_id(0) % n_tiles) * N + tl.arange(0, N)
        m_f = o_f < F
        o_row = o_f.to(tl.int64)[:, None]
        o_n = (tl.load(order_ptr + o_m) // K).to(tl.int64)
        o_d = tl.arange(0, BLOCK)
        p_x = x_ptr + o_n[:, None] * x_row + o_d[None, :]
        p_gate = gate_ptr + expert * gate_expert + o_row * gate_row + o_d[None, :]
        p_up = up_ptr + expert * up_expert + o_row * up_row + o_d[None, :]
        b_gate = tl.zeros([M, N], dtype=tl.float32)
        b_up = tl.zeros([M, N], dtype=tl.float32)
        for start in range(0, D, BLOCK):
            m_d = (start + o_d < D)[None, :]
            b_x = tl.load(p_x + start, mask=m_d, other=0.0)
            m_w = m_f[:, None] & m_d
            b_w = tl.load(p_gate + start, mask=m_w, other=0.0)
            b_v = tl.load(p_up + start, mask=m_w, other=0.0)
            b_gate = tl.dot(b_x, tl.trans(b_w), acc=b_gate, input_precision=PRECISION)
            b_up = tl.dot(b_x, tl.trans(b_v), acc=b_up, input_precision=PRECISION)
        m = m_m[:, None] & m_f[None, :]
        b_hidden = b_gate * sigmoid(b_gate) * b_up
        tl.store(hidden_ptr + o_m[:, None] * F + o_f[None, :], b_hidden, mask=m)
        if KEEP:
            p_both = both_ptr + o_m[:, None] * (2 * F) + o_f[None, :]
            tl.store(p_both, b_gate, mask=m)
            tl.store(p_both + F, b_up, mask=m)


launch_hidden = launcher(moe_experts_hidden_kernel)


@triton.jit
def moe_experts_product_kernel(
    a_ptr, b_ptr, second_ptr, order_ptr, out_ptr, block_at, n_blocks, a_row,
    b_expert, b_row, second_expert, second_row,
    J: tl.constexpr, R: tl.constexpr, K: tl.constexpr, TRANSPOSED: tl.constexpr,
    TOKENS: tl.constexpr, TWO: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute ``out`` [rows, J] = a b, b [R, J] of the row's expert, [J, R] if ``TRANSPOSED``.

    ``TOKENS``: a has a row per token. ``TWO``: add the next R columns of a times ``second``.
    """
    n_tiles = tl.cdiv(J, N)
    expert, o_m, m_m = _block(order_ptr, block_at, n_blocks, tl.program_id(0) // n_tiles, M)
    if expert >= 0:
        o_j = (tl.program_id(0) % n_tiles) * N + tl.arange(0, N)
        m_j = o_j < J
        o_r = tl.arange(0, BLOCK)
        o_a = o_m
        if TOKENS:
            o_a = (tl.load(order_ptr + o_m) // K).to(tl.int64)
        b_acc = tl.zeros([M, N], dtype=tl.float32)
        for half in tl.static_range(2 if TWO else 1):
            p_a = a_ptr + half * R + o_a[:, None] * a_row + o_r[None, :]
            if half == 0:
                p_b, row = b_ptr + expert * b_expert, b_row
            else:
                p_b, row = second_ptr + expert * second_expert, second_row
            for start in range(0, R, BLOCK):
                m_r = start + o_r < R
                b_a = tl.load(p_a + start, mask=m_r[None, :], other=0.0)
                o_here = (start + o_r).to(tl.int64)
                if TRANSPOSED:
                    p_here = p_b + o_j.to(tl.int64)[:, None] * row + o_here[None, :]
                    m = m_j[:, None] & m_r[None, :]
                    b_b = tl.trans(tl.load(p_here, mask=m, other=0.0))
                else:
                    p_here = p_b + o_here[:, None] * row + o_j[None, :]
                    b_b = tl.load(p_here, mask=m_r[:, None] & m_j[None, :], other=0.0)
                b_acc = tl.dot(b_a, b_b, acc=b_acc, input_precision=PRECISION)
        m = m_m[:, None] & m_j[None, :]
        tl.store(out_ptr + o_m[:, None] * J + o_j[None, :], b_acc, mask=m)


launch_product = launcher(moe_experts_product_kernel)


@triton.jit
def moe_experts_slope_kernel(
    dhidden_ptr, both_ptr, order_ptr, weight_ptr, dboth_ptr, dweight_ptr, first_at,
    E: tl.constexpr, F: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Differentiate the activation, given ``dhidden`` [rows, F] before the routing weight.

    Stores ``dboth`` [rows, 2 F] and the routing weights' gradient. ``dhidden`` is overwritten by
    the hidden values times the routing weight, which the gradient of ``down`` needs.
    """
    o_m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    m_m = o_m < tl.load(order_ptr + first_at + E)
    b_choice = tl.load(order_ptr + o_m, mask=m_m, other=0)
    b_weight = tl.load(weight_ptr + b_choice, mask=m_m, other=0.0).to(tl.float32)[:, None]
    b_sum = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for start in range(0, F, BLOCK):
        o_f = start + tl.arange(0, BLOCK)
        m = m_m[:, None] & (o_f < F)[None, :]
        p_dhidden = dhidden_ptr + o_m[:, None] * F + o_f[None, :]
        o_both = o_m[:, None] * (2 * F) + o_f[None, :]
        b_dh = tl.load(p_dhidden, mask=m, other=0.0).to(tl.float32)
        b_gate = tl.load(both_ptr + o_both, mask=m, other=0.0).to(tl.float32)
        b_up = tl.load(both_ptr + o_both + F, mask=m, other=0.0).to(tl.float32)
        b_s = sigmoid(b_gate)
        b_y = b_gate * b_s
        b_sum += b_y * b_up * b_dh
        tl.store(p_dhidden, b_weight * b_y * b_up, mask=m)
        b_dh *= b_weight
        tl.store(dboth_ptr + o_both, b_dh * b_up * (b_s + b_y * (1 - b_s)), mask=m)
        tl.store(dboth_ptr + o_both + F, b_dh * b_y, mask=m)
    tl.store(dweight_ptr + b_choice, tl.sum(b_sum, axis=1), mask=m_m)


launch_slope = launcher(moe_experts_slope_kernel)


@triton.jit
def moe_experts_weight_kernel(
    a_ptr, b_ptr, order_ptr, out_ptr, first_at, rows_at, a_row, b_row, out_expert, out_row,
    P: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, TOKENS_A: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute ``out`` [E, P, Q] = a^T b, summed over the rows of each expert.

    ``TOKENS_A``: a has a row per token and b one per row; otherwise the other way round. The
    columns of the one with one per row begin at ``rows_at``.
    """
    if TOKENS_A:
        b_ptr += rows_at
    else:
        a_ptr += rows_at
    first_ptr = order_ptr + first_at
    n_p, n_q = tl.cdiv(P, M), tl.cdiv(Q, N)
    i_e = tl.program_id(0) // (n_p * n_q)
    o_p = (tl.program_id(0) // n_q) % n_p * M + tl.arange(0, M)
    o_q = tl.program_id(0) % n_q * N + tl.arange(0, N)
    m_p, m_q = o_p < P, o_q < Q
    first = tl.load(first_ptr + i_e)
    end = tl.load(first_ptr + i_e + 1)
    b_acc = tl.zeros([M, N], dtype=tl.float32)
    for start in range(first, end, BLOCK):
        o_r = start + tl.arange(0, BLOCK)
        m_r = o_r < end
        o_n = (tl.load(order_ptr + o_r, mask=m_r, other=0) // K).to(tl.int64)
        o_a = o_n if TOKENS_A else o_r.to(tl.int64)
        o_b = o_r.to(tl.int64) if TOKENS_A else o_n
        p_a = a_ptr + o_a[:, None] * a_row + o_p[None, :]
        p_b = b_ptr + o_b[:, None] * b_row + o_q[None, :]
        b_a = tl.load(p_a, mask=m_r[:, None] & m_p[None, :], other=0.0)
        b_b = tl.load(p_b, mask=m_r[:, None] & m_q[None, :], other=0.0)
        b_acc = tl.dot(tl.trans(b_a), b_b, acc=b_acc, input_precision=PRECISION)
    p_out = out_ptr + i_e.to(tl.int64) * out_expert + o_p.to(tl.int64)[:, None] * out_row
    tl.store(p_out + o_q[None, :], b_acc, mask=m_p[:, None] & m_q[None, :])


launch_weight = launcher(moe_experts_weight_kernel)


@triton.jit
def moe_experts_combine_kernel(
    rows_ptr, order_ptr, weight_ptr, out_ptr, row_at, n_tokens,
    D: tl.constexpr, K: tl.constexpr, WEIGHTED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute ``out`` [tokens, D]: the sum of each token's rows, ``WEIGHTED`` or not.

    A row of -1 is missing.
    """
    o_n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    o_d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_n, m_d = o_n < n_tokens, o_d < D
    b_sum = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for j in range(K):
        b_row = tl.load(order_ptr + row_at + o_n * K + j, mask=m_n, other=-1).to(tl.int64)
        m = (b_row >= 0)[:, None] & m_d[None, :]
        b_here = tl.load(rows_ptr + b_row[:, None] * D + o_d[None, :], mask=m, other=0.0)
        if WEIGHTED:
            b_w = tl.load(weight_ptr + o_n * K + j, mask=m_n, other=0.0).to(tl.float32)
            b_sum += b_w[:, None] * b_here.to(tl.float32)
        else:
            b_sum += b_here.to(tl.float32)
    p_out = out_ptr + o_n[:, None] * D + o_d[None, :]
    tl.store(p_out, b_sum, mask=m_n[:, None] & m_d[None, :])


launch_combine = launcher(moe_experts_combine_kernel)
