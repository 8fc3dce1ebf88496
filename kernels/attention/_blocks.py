"""Blocks of tokens and of packed rows, as the loops of the attention kernels read them.

``DESCRIBED``: read them by tensor descriptors, which a kernel makes at its start, instead of by the
addresses of every element. On an H200 the saved registers let twice as many programs share a
multiprocessor, so that one multiplies while another computes exponents.
"""

from kernels.core.triton_helpers import tl, triton


@triton.jit
def describe_tokens(
    ptr, end, token, D: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """Make a descriptor of one head's keys or values, which must have tokens."""
    return tl.make_tensor_descriptor(
        ptr, shape=[tl.maximum(end, 1), D], strides=[token, 1], block_shape=[N, BLOCK_D]
    )


@triton.jit
def describe_rows(
    ptr, length, token, head,
    R: tl.constexpr, D: tl.constexpr, M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Make a descriptor of one group's packed rows; a block of M rows holds complete R heads."""
    return tl.make_tensor_descriptor(
        ptr, shape=[length, R, D], strides=[token, head, 1], block_shape=[M // R, R, BLOCK_D]
    )


@triton.jit
def token_block(at, token, start, o_c, columns, end, N: tl.constexpr, DESCRIBED: tl.constexpr):
    """Load keys or values from ``start`` on, [N, columns of ``o_c``]; zeros from ``end`` on."""
    if DESCRIBED:
        b = at.load([start, 0])
    else:
        o_k = start + tl.arange(0, N)
        p = at + o_k.to(tl.int64)[:, None] * token + o_c[None, :]
        b = tl.load(p, mask=(o_k < end)[:, None] & (o_c < columns)[None, :], other=0.0)
    return b


@triton.jit
def row_block(
    at, head, token, start, o_c, columns, length,
    R: tl.constexpr, M: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """Load packed rows from ``start`` on, a multiple of M, [M, columns of ``o_c``]."""
    if DESCRIBED:
        b = at.load([start // R, 0, 0]).reshape([M, at.block_shape[2]])
    else:
        o_m = start + tl.arange(0, M)
        o_s = o_m // R
        p = at + (o_m % R).to(tl.int64)[:, None] * head + o_s.to(tl.int64)[:, None] * token
        m = (o_s < length)[:, None] & (o_c < columns)[None, :]
        b = tl.load(p + o_c[None, :], mask=m, other=0.0)
    return b
