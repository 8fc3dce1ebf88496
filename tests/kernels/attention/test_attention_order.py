"""Order of attention's tiles: each is processed once, some heads at a time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention import _order
from kernels.core import triton_helpers

pytestmark = pytest.mark.skipif(not triton_helpers.INSTALLED, reason="Triton is not installed")


@given(groups=st.integers(1, 40), blocks=st.integers(1, 9), together=st.integers(1, 50))
def test_every_tile_of_every_group_is_taken_once(groups, blocks, together):
    tiles = range(groups * blocks)
    places = [_order.tile_coordinates.fn(tile, groups, blocks, together) for tile in tiles]
    assert sorted(places) == [(group, block) for group in range(groups) for block in range(blocks)]


@given(groups=st.integers(1, 40), blocks=st.integers(1, 9), together=st.integers(1, 50))
def test_groups_are_taken_some_at_a_time_and_of_these_the_first_tiles_first(
    groups, blocks, together
):
    tiles = range(groups * blocks)
    places = [_order.tile_coordinates.fn(tile, groups, blocks, together) for tile in tiles]
    rank = [(group // together, block) for group, block in places]
    assert rank == sorted(rank)


def test_several_multiprocessors_share_what_is_read_of_a_head(monkeypatch):
    monkeypatch.setattr(_order, "sm_count", lambda _: 132)
    assert _order.heads_together(torch.empty(1)) == 33
    monkeypatch.setattr(_order, "sm_count", lambda _: 2)
    assert _order.heads_together(torch.empty(1)) == 2


def test_all_heads_are_taken_at_a_time_where_the_l2_holds_them_and_balance_is_asked_for(
    monkeypatch,
):
    monkeypatch.setattr(_order, "sm_count", lambda _: 132)
    k = torch.empty(2, 8, 64, 16, dtype=torch.bfloat16)
    both = 2 * k.numel() * k.element_size()
    for l2, together in ((2 * both, _order.ALL), (2 * both - 1, 33)):
        monkeypatch.setattr(_order, "l2_bytes", lambda _, l2=l2: l2)
        assert _order.heads_together(k, balanced=True) == together
        assert _order.heads_together(k) == 33


def test_tiles_of_all_heads_are_counted_in_32_bits(monkeypatch):
    """A short head dimension and many query heads of one key head make many tiles of one head."""
    monkeypatch.setattr(_order, "sm_count", lambda _: 132)
    monkeypatch.setattr(_order, "l2_bytes", lambda _: 1 << 30)
    k = torch.empty(1, 1, 64, 16, dtype=torch.bfloat16)
    for tiles in (1, 32_767, 32_768, 1 << 20):
        together = _order.heads_together(k, balanced=True, tiles=tiles)
        assert together * tiles < 1 << 31
        assert together == (_order.ALL if tiles < 32_768 else 33)
