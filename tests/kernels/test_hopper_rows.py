"""What comes before and after attention's backward kernels for Hopper."""

import pytest
import torch
from subjects import DEVICE

from kernels._triton import INTERPRETED
from kernels.attention import _hopper

pytestmark = pytest.mark.skipif(
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("keys", "heads", "split"), [(1, 1, 2), (70, 2, 3), (33, 3, 5)])
def test_parts_are_added_before_they_are_rounded(dtype, keys, heads, split):
    batch, dim = 2, 64
    parts = torch.randn(2, batch, heads * split, keys, dim, device=DEVICE)
    by_tokens = torch.full((batch, keys, heads, dim), torch.nan, dtype=dtype, device=DEVICE)
    dk, dv = by_tokens.transpose(1, 2), torch.empty_like(by_tokens).view(batch, heads, keys, dim)
    _hopper.add_parts(parts[0], dk, dv)
    wanted = parts.view(2, batch, heads, split, keys, dim).sum(3)
    for got, sums in zip((dk, dv), wanted, strict=True):
        torch.testing.assert_close(got.float(), sums.to(dtype).float(), rtol=2**-10, atol=1e-5)
