"""FLOPs of torch's operators are those that the mathematics needs, and no more."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from workbench.runner.roofline import flop_formulas

NAME = "_scaled_dot_product_flash_attention_for_cpu"


def refusing(*args, out_val=None, **kwargs):
    """Count as torch before 2.13 counts grouped heads."""
    raise AssertionError("shapes are incompatible")


@pytest.fixture(params=[False, True], ids=["this torch", "an older one"])
def registry(request, monkeypatch):
    if request.param:
        for name in (NAME, f"{NAME}_backward"):
            monkeypatch.setitem(flop_registry, getattr(torch.ops.aten, name), refusing)
    flop_formulas.register()


def counted(call, *leaves) -> tuple[int, int]:
    """Return the FLOPs of a call, and of its gradients."""
    with FlopCounterMode(display=False) as counter:
        out = call(*leaves)
        forward = counter.get_total_flops()
        out.sum().backward()
    return forward, counter.get_total_flops() - forward


def leaf(*shape):
    return torch.randn(shape, requires_grad=True)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(
    ("length", "keys", "causal", "pairs"),
    [(16, 16, False, 256), (16, 16, True, 136), (3, 5, True, 6), (5, 3, True, 12)],
)
def test_attention_counts_the_pairs_that_its_mask_leaves(
    registry, kv_heads, length, keys, causal, pairs
):
    assert flop_counter.flop_registry is flop_registry
    q, k, v = leaf(2, 4, length, 8), leaf(2, kv_heads, keys, 8), leaf(2, kv_heads, keys, 8)

    def attention(q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    products = 2 * 2 * 2 * 4 * pairs * 8
    assert counted(attention, q, k, v) == (products, 2 * products)


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("convolution", [functional.conv1d, functional.conv_transpose1d])
def test_each_gradient_of_a_convolution_takes_as_much_as_its_output(registry, convolution, groups):
    x, weight = leaf(3, 8, 20), leaf(8, 8 // groups, 5)
    forward, backward = counted(lambda x, w: convolution(x, w, groups=groups), x, weight)
    positions = 16 if convolution is functional.conv1d else 20
    assert (forward, backward) == (2 * 3 * positions * 8 * 8 // groups * 5, 2 * forward)


def test_a_gradient_that_is_not_needed_does_not_count(registry):
    x, weight = torch.randn(3, 8, 20), leaf(8, 8, 5)
    forward, backward = counted(functional.conv1d, x, weight)
    assert backward == forward
