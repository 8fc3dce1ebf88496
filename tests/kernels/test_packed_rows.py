"""Normalisers and row sums in the order of packed rows, for attention's kernels for Hopper."""

import pytest
import torch
from subjects import DEVICE

from kernels._triton import INTERPRETED
from kernels.attention import _hopper


@pytest.mark.skipif(
    not INTERPRETED and DEVICE.type == "cpu", reason="runs on a GPU and in Triton's interpreter"
)
@pytest.mark.parametrize(("length", "heads", "groups"), [(5, 4, 1), (33, 8, 2), (70, 2, 2)])
def test_rows_are_packed_by_token_and_padded_with_zeros(length, heads, groups):
    batch, dim, each = 2, 64, heads // groups
    out, dout = (torch.randn(batch, heads, length, dim, device=DEVICE) for _ in range(2))
    lse = torch.randn(batch, heads, length, device=DEVICE)
    by_tokens = dout.transpose(1, 2).contiguous().transpose(1, 2)
    packed, delta = _hopper.pack(out, by_tokens, lse, groups)
    rows = length * each
    for got, by_head in ((packed, lse), (delta, (out * dout).sum(-1))):
        wanted = by_head.view(batch, groups, each, length).transpose(2, 3).reshape(-1, rows)
        torch.testing.assert_close(got[:, :rows], wanted, rtol=1e-5, atol=1e-5)
        assert not got[:, rows:].any() and got.stride(0) % 4 == 0
