"""Choice of ``auto`` for attention on Hopper: our own kernels where they were measured faster."""

import dataclasses

import pytest
import torch

import kernels
from kernels import OPS
from kernels.attention import _hopper, _prefer
from kernels.core import dispatch


def inputs(batch, length, heads, groups, dim, *, trained=False, keys=None, **more):
    q, k, v = (
        torch.empty(batch, n, tokens, dim, device="meta", dtype=torch.bfloat16)
        for n, tokens in ((heads, length), *2 * ((groups, keys or length),))
    )
    options = {"causal": True, "window": None, "scale": None, "kv_length": None} | more
    return q.requires_grad_(trained), k, v, *options.values()


@pytest.fixture(autouse=True)
def on_hopper(monkeypatch):
    monkeypatch.setattr(_hopper, "is_hopper", lambda _: True)
    monkeypatch.setattr(_hopper, "describable", lambda *_: True)


@pytest.mark.parametrize(
    ("sizes", "forward", "trained"),
    [
        ((4, 4096, 32, 8, 128), True, True),
        ((8, 1024, 16, 16, 128), True, True),
        ((16, 512, 32, 8, 128), False, True),
        ((2, 16384, 32, 8, 128), True, False),
        ((8, 1024, 12, 4, 64), False, True),
        ((4, 4096, 12, 12, 64), True, False),
        ((8, 1024, 12, 12, 64), False, False),
        ((8, 1024, 32, 8, 96), False, False),
        ((1, 256, 8, 2, 128), False, False),
        ((1, 1024, 12, 4, 64), False, False),
    ],
    ids=str,
)
def test_ours_come_first_where_they_were_measured_ahead(sizes, forward, trained):
    able = ("sdpa_cudnn", "triton", "manual")
    assert (_prefer(able, *inputs(*sizes)) is not None) == forward
    result = _prefer(able, *inputs(*sizes, trained=True))
    assert (result is not None) == trained
    if result:
        name, why = result
        assert name == "triton" and "with gradients" in why and str(sizes[-1]) in why


@pytest.mark.parametrize(
    "more",
    [{"causal": False}, {"window": 512}, {"kv_length": torch.tensor(7)}, {"keys": 8192}],
    ids=str,
)
def test_what_was_not_measured_goes_by_the_order(more):
    assert _hopper.ahead(*inputs(4, 4096, 32, 8, 128)) is not None
    assert _hopper.ahead(*inputs(4, 4096, 32, 8, 128, **more)) is None


@pytest.mark.parametrize("package", ["flash3", "flash4"])
def test_flash_attention_for_hopper_comes_before_ours(package):
    assert _prefer((package, "sdpa_cudnn", "triton"), *inputs(4, 4096, 32, 8, 128)) is None


def test_ours_are_not_taken_where_triton_cannot_run():
    assert _prefer(("sdpa_cudnn", "manual"), *inputs(4, 4096, 32, 8, 128)) is None


def test_auto_takes_what_is_preferred_and_tells_why():
    op = dataclasses.replace(OPS["attention"], prefer=lambda able, *_: (able[-1], "it is the last"))
    q = torch.randn(1, 2, 3, 8)
    arguments = (q, q, q, True, None, None, None)
    kernels.reset_usage()
    chosen = dispatch._choose(op, arguments)
    assert kernels.reasons()["attention"] == (chosen, "preferred: it is the last")
    assert kernels.usage()["attention"] == {chosen: 1}
    assert chosen != dispatch._choose(OPS["attention"], arguments)
