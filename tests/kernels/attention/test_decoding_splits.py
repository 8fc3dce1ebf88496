"""Decoding divides its keys over as many programs as run at once, in tiles that depend on rows."""

import importlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

_flash = importlib.import_module("kernels.attention._flash")
MULTIPROCESSORS, HOPPER_BYTES = 132, 232448


@pytest.fixture(scope="module", autouse=True)
def hopper():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_flash, "sm_count", lambda device: MULTIPROCESSORS)
        patch.setattr(_flash, "shared_bytes", lambda device: HOPPER_BYTES)
        yield


@given(
    batch=st.integers(1, 300),
    groups=st.sampled_from((1, 4, 8, 10, 16)),
    keys=st.integers(1, 70_000),
    dim=st.sampled_from((64, 128, 256)),
)
def test_the_parts_of_a_deep_tile_run_in_one_turn_and_hold_two_blocks_of_keys(
    batch, groups, keys, dim
):
    tile, *_ = _flash._deep_first(0, torch.bfloat16, dim, 4)
    _, n, _, stages = tile
    q = torch.empty(batch, 4 * groups, 1, dim, device="meta", dtype=torch.bfloat16)
    k = torch.empty(batch, groups, keys, dim, device="meta", dtype=torch.bfloat16)
    splits = _flash._splits(q, k, 4, tile)
    assert splits == 1 or splits <= -(-keys // (2 * n))
    if stages >= _flash.DEEP:
        assert splits == 1 or splits * batch * groups <= MULTIPROCESSORS


@pytest.mark.parametrize("rows", [1, 4, 16, 17, 64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_deep_tile_is_first_where_it_was_the_fastest(rows, dtype):
    first, *rest = _flash._deep_first(0, dtype, 128, rows)
    assert (first[3] == _flash.DEEP) == (rows <= 16 and dtype == torch.bfloat16)
    assert set(_flash.forward_tiles(0, dtype, 128, rows)) <= {first, *rest}
