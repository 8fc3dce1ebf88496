"""Kernels before and after attention's backward kernels for Hopper, and their launches."""

import pytest
import torch
from stubbed_triton import stubbed
from subjects import DEVICE
from test_replay import launches_of, the_same

from kernels.attention import _flash, _hopper
from kernels.core import replay
from kernels.core.triton_helpers import INSTALLED, INTERPRETED

somewhere_kernels_run = pytest.mark.skipif(
    not INTERPRETED and DEVICE.type == "cpu", reason="runs on a GPU and in Triton's interpreter"
)


@somewhere_kernels_run
@pytest.mark.parametrize(("length", "heads", "groups"), [(5, 4, 1), (33, 8, 2), (70, 2, 2)])
def test_rows_are_packed_by_token_and_padded_with_zeros(length, heads, groups):
    batch, dim, heads_per_group = 2, 64, heads // groups
    out, dout = (torch.randn(batch, heads, length, dim, device=DEVICE) for _ in range(2))
    lse = torch.randn(batch, heads, length, device=DEVICE)
    by_tokens = dout.transpose(1, 2).contiguous().transpose(1, 2)
    packed, delta = _hopper.pack(out, by_tokens, lse, groups)
    rows = length * heads_per_group
    for got, by_head in ((packed, lse), (delta, (out * dout).sum(-1))):
        wanted = (
            by_head.view(batch, groups, heads_per_group, length).transpose(2, 3).reshape(-1, rows)
        )
        torch.testing.assert_close(got[:, :rows], wanted, rtol=1e-5, atol=1e-5)
        assert not got[:, rows:].any() and got.stride(0) % 4 == 0


@somewhere_kernels_run
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


@pytest.mark.skipif(INTERPRETED or not INSTALLED, reason="needs Triton to keep compiled kernels")
@pytest.mark.parametrize("split", [1, 3])
def test_the_backward_pass_is_replayed_with_the_same_launches(monkeypatch, split):
    runs = []

    def backward(*args):
        runs.append(args)
        return own(*args)

    own = _hopper.backward
    for name in ("takes", "takes_backward"):
        monkeypatch.setattr(_hopper, name, lambda *_: True)
    monkeypatch.setattr(_flash, "describable", lambda *_: True)
    monkeypatch.setattr(_hopper, "_split", lambda *_: split)
    monkeypatch.setattr(_hopper, "backward", backward)
    q, out, dout = torch.randn(3, 2, 6, 150, 128, dtype=torch.bfloat16).unbind()
    k, v = torch.randn(2, 2, 2, 150, 128, dtype=torch.bfloat16).unbind()
    lse = torch.randn(2, 6, 150)

    def call():
        return _flash._backward(dout, q, k, v, out, lse, None, True, None, 0.1)

    with stubbed() as driver, torch.no_grad():
        call()  # Triton launches
        first, grads = launches_of(driver, call)
        for _ in range(replay.BEFORE + 2):
            again, other_grads = launches_of(driver, call)
            the_same(again, first)
            assert [x.stride() for x in other_grads] == [x.stride() for x in grads]
    replay.forget()
    assert len(first) == 3 + (split > 1)
    assert len(runs) == replay.BEFORE + 2, "the others are replays"


# Batch, tokens, heads, key heads; the fastest split on an H200, which has 132 multiprocessors.
SPLITS = [
    ((4, 4096, 32, 8), {1}),
    ((4, 2048, 32, 8), {1}),
    ((2, 2048, 40, 8), {1}),
    ((8, 1024, 12, 4), {1}),
    ((8, 1024, 6, 2), {1}),
    ((1, 4096, 32, 8), {1}),
    ((1, 2048, 32, 8), {2}),
    ((4, 1024, 8, 2), {4}),
    ((1, 4096, 28, 4), {7}),
    ((1, 64, 32, 8), {1}),
    ((1, 512, 4, 4), {1}),
    ((1, 1024, 32, 8), {4}),
    ((2, 4096, 32, 4), {1}),
]


@pytest.mark.parametrize(("sizes", "fastest"), SPLITS, ids=str)
def test_heads_are_split_as_was_the_fastest(monkeypatch, sizes, fastest):
    monkeypatch.setattr(_hopper, "sm_count", lambda _: 132)
    batch, tokens, heads, groups = sizes
    q, k = (torch.empty(batch, n, tokens, 128, device="meta") for n in (heads, groups))
    assert _hopper._split(q, k, causal=True, window=None) in fastest


def test_with_a_window_heads_are_split_only_where_programs_are_few(monkeypatch):
    monkeypatch.setattr(_hopper, "sm_count", lambda _: 132)
    q, k = (torch.empty(1, n, 4096, 128, device="meta") for n in (32, 8))
    assert _hopper._split(q, k, causal=True, window=512) == 1
    assert _hopper._split(q[:, :4], k[:, :1], causal=True, window=512) > 1


def test_a_full_mask_needs_no_more_programs_than_multiprocessors(monkeypatch):
    monkeypatch.setattr(_hopper, "sm_count", lambda _: 128)
    q, k = (torch.empty(1, n, 2048, 128, device="meta") for n in (32, 8))
    assert _hopper._split(q, k, causal=False, window=None) == 1
    assert _hopper._split(q[:, :16], k[:, :4], causal=False, window=None) == 2


@pytest.mark.parametrize(
    ("sizes", "window", "taken"),
    [
        ((4, 2048, 32, 8, 128), None, True),
        ((4, 2048, 32, 4, 64), None, True),
        ((4, 4096, 32, 4, 64), None, False),
        ((1, 4096, 16, 2, 64), None, True),  # its heads are split
        ((4, 4096, 12, 4, 64), None, True),
        ((8, 1024, 12, 12, 64), None, True),
        ((4, 4096, 12, 12, 64), None, False),
        ((2, 8192, 32, 8, 128), 1024, True),
        ((4, 4096, 12, 12, 64), 256, True),
        ((4, 4096, 32, 8, 64), 512, False),
    ],
    ids=str,
)
def test_the_backward_pass_is_taken_where_it_is_faster(monkeypatch, sizes, window, taken):
    monkeypatch.setattr(_hopper, "sm_count", lambda _: 132)
    batch, tokens, heads, groups, dim = sizes
    q, k = (torch.empty(batch, n, tokens, dim, device="meta") for n in (heads, groups))
    assert _hopper.takes_backward(q, k, causal=True, window=window) == taken
