"""Sort of the tokens' choices by expert: a counting sort that never leaves the GPU.

Choice a = n K + j is the j-th of token n. The choices of one expert stand together, in their own
order, in blocks of M rows, the last of which may not be full. Only the GPU knows the number of
blocks: the table of blocks has room for the largest possible number, and holds -1 for the
rest.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.core.launch import launcher
from kernels.core.operator import cdiv, remembered
from kernels.core.triton_helpers import power_of_two, tl, triton
from kernels.core.workspace import Workspace, scratch


class Order(NamedTuple):
    """Order of the choices: one int32 ``table``, as an allocation costs more than its memory.

    The rows that experts compute are in this order. From 0 on ``choice`` [rows]: the choice of each
    row. From ``row_at`` on [choices]: the row of each choice, -1 if it is dropped. ``first_at``,
    [E + 1]: the first row of each expert, and the end. ``block_at``, [3, n_blocks]: each block's
    expert, first row, and the end of its expert's rows.
    """

    table: Tensor
    n_choices: int
    n_blocks: int
    row_at: int
    first_at: int
    block_at: int

    @classmethod
    def of(cls, table: Tensor, n_choices: int, n_experts: int, m: int) -> Order:
        """Read the order from ``table``, for so many choices in blocks of ``m`` rows."""
        plan = _plan(n_choices, n_experts, m)
        return cls(table, n_choices, plan.n_blocks, plan.row_at, plan.first_at, plan.block_at)


class _Plan(NamedTuple):
    """Sizes of the table and of the sort; the sort's counts begin at ``count_at``, the end."""

    n_blocks: int
    row_at: int
    first_at: int
    block_at: int
    count_at: int
    end: int
    chunk: int
    n_chunks: int
    sub: int
    block_e: int


@remembered
def _plan(n_choices: int, n_experts: int, m: int) -> _Plan:
    block_e = max(16, power_of_two(n_experts))
    sub = max(16, 4096 // block_e)
    chunk = sub * cdiv(n_choices, 256 * sub)
    n_chunks = cdiv(n_choices, chunk)
    n_blocks = (n_choices + min(n_experts, n_choices) * (m - 1)) // m
    ends = [0]
    for size in (n_choices, n_choices, n_experts + 1, 3 * n_blocks, n_chunks * n_experts):
        ends.append(ends[-1] + 16 * cdiv(size, 16))  # Triton assumes this of aligned pointers
    _, row_at, first_at, block_at, count_at, end = ends
    return _Plan(n_blocks, row_at, first_at, block_at, count_at, end, chunk, n_chunks, sub, block_e)


@triton.jit
def _one_hot(index_ptr, o_a, n_choices, o_e, E: tl.constexpr):
    """Return ones where a choice is of an expert, else zeros: [choices, experts]."""
    b_index = tl.load(index_ptr + o_a, mask=o_a < n_choices, other=-1)
    return ((b_index[:, None] == o_e[None, :]) & (o_e < E)[None, :]).to(tl.int32)


@triton.jit
def _count(
    index_ptr, count_ptr, i_p, n_choices, chunk,
    E: tl.constexpr, SUB: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Count the choices of each expert in one chunk."""
    o_e = tl.arange(0, BLOCK_E)
    b_count = tl.zeros([BLOCK_E], dtype=tl.int32)
    for start in range(0, chunk, SUB):
        o_a = i_p * chunk + start + tl.arange(0, SUB)
        b_count += tl.sum(_one_hot(index_ptr, o_a, n_choices, o_e, E), axis=0)
    tl.store(count_ptr + i_p * E + o_e, b_count, mask=o_e < E)


@triton.jit
def _table(
    first_ptr, block_ptr, count_ptr, n_chunks, n_blocks,
    E: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Turn counts of the chunks into first rows of the chunks; then the blocks."""
    o_e = tl.arange(0, BLOCK_E)
    m_e = o_e < E
    b_count = tl.zeros([BLOCK_E], dtype=tl.int32)
    for start in range(0, n_chunks, ROWS):
        o_c = start + tl.arange(0, ROWS)
        m = (o_c < n_chunks)[:, None] & m_e[None, :]
        b_count += tl.sum(tl.load(count_ptr + o_c[:, None] * E + o_e[None, :], mask=m, other=0), 0)
    b_end = tl.cumsum(b_count, axis=0)
    b_first = b_end - b_count
    tl.store(first_ptr + o_e, b_first, mask=m_e)
    tl.store(first_ptr + E, tl.sum(b_count, axis=0))
    b_next = b_first
    for start in range(0, n_chunks, ROWS):
        o_c = start + tl.arange(0, ROWS)
        m = (o_c < n_chunks)[:, None] & m_e[None, :]
        p_count = count_ptr + o_c[:, None] * E + o_e[None, :]
        b_here = tl.load(p_count, mask=m, other=0)
        tl.store(p_count, b_next[None, :] + tl.cumsum(b_here, axis=0) - b_here, mask=m)
        b_next += tl.sum(b_here, axis=0)
    b_blocks = (b_count + M - 1) // M
    b_last = tl.cumsum(b_blocks, axis=0)
    b_before = b_last - b_blocks
    for start in range(0, n_blocks, ROWS):
        o_b = start + tl.arange(0, ROWS)
        m_b = o_b < n_blocks
        b_expert = tl.sum((b_last[None, :] <= o_b[:, None]).to(tl.int32), axis=1)
        b_is = o_e[None, :] == b_expert[:, None]
        b_row = b_first[None, :] + (o_b[:, None] - b_before[None, :]) * M
        b_row = tl.sum(tl.where(b_is, b_row, 0), axis=1)
        b_until = tl.sum(tl.where(b_is, b_end[None, :], 0), axis=1)
        tl.store(block_ptr + o_b, tl.where(b_expert < E, b_expert, -1), mask=m_b)
        tl.store(block_ptr + n_blocks + o_b, b_row, mask=m_b)
        tl.store(block_ptr + 2 * n_blocks + o_b, b_until, mask=m_b)


@triton.jit
def _place(
    index_ptr, order_ptr, row_ptr, next_ptr, i_p, n_choices, chunk,
    E: tl.constexpr, SUB: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Return the row of each choice of a chunk: its expert's next, counted within the chunk."""
    o_e = tl.arange(0, BLOCK_E)
    b_next = tl.load(next_ptr + i_p * E + o_e, mask=o_e < E, other=0)
    for start in range(0, chunk, SUB):
        o_a = i_p * chunk + start + tl.arange(0, SUB)
        b_is = _one_hot(index_ptr, o_a, n_choices, o_e, E)
        b_row = tl.sum(b_is * (b_next[None, :] + tl.cumsum(b_is, axis=0) - 1), axis=1)
        m_some = tl.sum(b_is, axis=1) > 0
        tl.store(order_ptr + b_row, o_a.to(tl.int32), mask=m_some)
        tl.store(row_ptr + o_a, tl.where(m_some, b_row, -1), mask=o_a < n_choices)
        b_next += tl.sum(b_is, axis=0)


@triton.jit
def _moe_experts_count_kernel(
    index_ptr, order_ptr, n_choices, chunk, count_at,
    E: tl.constexpr, SUB: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    i_p = tl.program_id(0).to(tl.int64)
    _count(index_ptr, order_ptr + count_at, i_p, n_choices, chunk, E, SUB, BLOCK_E)


_launch_count = launcher(_moe_experts_count_kernel)


@triton.jit
def _moe_experts_table_kernel(
    order_ptr, n_chunks, n_blocks, first_at, block_at, count_at,
    E: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Write the table of blocks, in one program."""
    first_ptr, block_ptr = order_ptr + first_at, order_ptr + block_at
    _table(first_ptr, block_ptr, order_ptr + count_at, n_chunks, n_blocks, E, M, ROWS, BLOCK_E)


_launch_table = launcher(_moe_experts_table_kernel)


@triton.jit
def _moe_experts_place_kernel(
    index_ptr, order_ptr, n_choices, chunk, row_at, count_at,
    E: tl.constexpr, SUB: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    i_p = tl.program_id(0).to(tl.int64)
    row_ptr, next_ptr = order_ptr + row_at, order_ptr + count_at
    _place(index_ptr, order_ptr, row_ptr, next_ptr, i_p, n_choices, chunk, E, SUB, BLOCK_E)


_launch_place = launcher(_moe_experts_place_kernel)


@triton.jit
def _moe_experts_order_kernel(
    index_ptr, order_ptr, n_choices, chunk, n_blocks, row_at, first_at, block_at, count_at,
    E: tl.constexpr, M: tl.constexpr, SUB: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Count, make the table and assign rows in one program, for a sort of one chunk."""
    count_ptr, row_ptr = order_ptr + count_at, order_ptr + row_at
    first = tl.program_id(0).to(tl.int64)
    _count(index_ptr, count_ptr, first, n_choices, chunk, E, SUB, BLOCK_E)
    tl.debug_barrier()
    _table(order_ptr + first_at, order_ptr + block_at, count_ptr, 1, n_blocks, E, M, SUB, BLOCK_E)
    tl.debug_barrier()
    _place(index_ptr, order_ptr, row_ptr, count_ptr, first, n_choices, chunk, E, SUB, BLOCK_E)


_launch_order = launcher(_moe_experts_order_kernel)


def by_expert(index: Tensor, n_experts: int, m: int, workspace: Workspace | None = None) -> Order:
    """Return the order of the choices ``index``, of any shape, in blocks of ``m`` rows.

    On the current GPU, which must be that of ``index``.
    """
    n_choices = index.numel()
    plan = _plan(n_choices, n_experts, m)
    table = scratch(workspace, "order", (plan.end,), torch.int32, index.device)
    index = index.contiguous()
    tile = {"E": n_experts, "BLOCK_E": plan.block_e, "num_warps": 4}
    n_blocks, row_at, first_at, block_at, count_at, _, chunk, n_chunks, sub, _ = plan
    if n_chunks == 1:
        _launch_order(
            (1,), index, table, n_choices, chunk, n_blocks, row_at, first_at, block_at,
            count_at, M=m, SUB=sub, **tile,
        )  # fmt: skip
        return Order.of(table, n_choices, n_experts, m)
    _launch_count((n_chunks,), index, table, n_choices, chunk, count_at, SUB=sub, **tile)
    _launch_table(
        (1,), table, n_chunks, n_blocks, first_at, block_at, count_at, M=m, ROWS=sub, **tile
    )
    _launch_place((n_chunks,), index, table, n_choices, chunk, row_at, count_at, SUB=sub, **tile)
    return Order.of(table, n_choices, n_experts, m)
