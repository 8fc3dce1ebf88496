"""Pieces of a group in the gated norm, and prefetched data in shared memory."""

from __future__ import annotations

import sys
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels import _qk
from kernels.core.triton_helpers import power_of_two
from kernels.gated_rms_norm import MAX_GROUP, pieces

NORM = sys.modules[pieces.__module__]  # ``kernels.gated_rms_norm`` is the operator
LIMITS = (99 << 10, 163 << 10, 227 << 10)  # shared memory of a block: consumer GPUs, A100, H100


@given(st.integers(1, MAX_GROUP))
def test_pieces_cover_a_group_and_leave_no_piece_idle(group):
    count, block = pieces(group)
    assert (count - 1) * block < group <= count * block
    assert count <= 3
    assert block == power_of_two(block)


@given(st.integers(1, MAX_GROUP))
def test_a_wide_group_leaves_at_most_a_third_of_the_lanes_idle(group):
    count, block = pieces(group)
    assert group <= 512 or 3 * (count * block - group) <= count * block


@pytest.mark.parametrize("limit", LIMITS)
@given(st.integers(1, MAX_GROUP), st.sampled_from([torch.bfloat16, torch.float32]))
def test_what_the_gated_norm_fetches_ahead_fits(limit, group, dtype):
    with mock.patch.object(NORM, "shared_bytes", lambda _: limit):
        tiles = NORM._backward_tiles(0, group, 1, dtype)
    count, block = pieces(group)
    for rows, _, _, stages in tiles:
        assert (stages - 1) * 3 * dtype.itemsize * rows * count * block <= limit


@pytest.mark.parametrize("limit", LIMITS)
@given(
    st.sampled_from([16, 48, 64, 80, 128, 256]),
    st.integers(1, 128),
    st.integers(1, 128),
    st.sampled_from([torch.bfloat16, torch.float32]),
)
def test_what_gradients_of_heads_fetch_ahead_fits(limit, dim, q_heads, k_heads, dtype):
    with mock.patch.object(_qk, "shared_bytes", lambda _: limit):
        heads, warps, _, stages = _qk._backward_tiles(0, dim, q_heads, k_heads, dtype)[0]
    padded = -(-q_heads // heads) * heads + -(-k_heads // heads) * heads
    assert (stages - 1) * padded * 2 * power_of_two(dim) * dtype.itemsize <= 0.9 * limit
    assert warps <= 8
