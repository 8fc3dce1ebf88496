"""The pieces that the gated norm takes a group in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernels._triton import power_of_two
from kernels.gated_rms_norm import MAX_GROUP, pieces


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
