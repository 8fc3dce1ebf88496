"""The least work of an operator counts nothing that its results do not need."""

from __future__ import annotations

import pytest
import torch

from kernels import OPS
from kernels.core.operator import Case

CPU = torch.device("cpu")


def cost(name, sizes):
    op = OPS[name]
    return op.cost(**op.inputs(Case("", op.cases[0].sizes | sizes), CPU, torch.float32, 0))


@pytest.mark.parametrize(
    "name",
    [
        "adaptive_attention", "attention", "graph_diffusion", "linear_cross_entropy",
        "moe_experts", "moe_gating", "ssd_scan",
    ],
)  # fmt: skip
def test_a_gradient_takes_two_products_for_each_one_of_the_forward_pass(name):
    needed = cost(name, {})
    assert needed.backward.flops == 2 * needed.forward.flops > 0


def test_experts_that_no_token_can_choose_are_not_read():
    sizes = {"rows": 2, "dim": 16, "width": 16, "k": 2}
    few, many = (cost("moe_experts", {**sizes, "experts": n}) for n in (4, 64))
    assert few.forward == many.forward
    expert = 3 * 16 * 16 * 4  # bytes; all experts get a gradient
    assert many.backward.bytes - few.backward.bytes == 60 * expert


@pytest.mark.parametrize(
    ("sizes", "keys"),
    [
        ({"length": 1, "keys": 64}, 64),
        ({"length": 1, "keys": 64, "window": 16}, 16),
        ({"length": 5, "keys": 64, "window": 16}, 20),
        ({"length": 5, "keys": 64, "window": 16, "causal": False}, 20),
        ({"length": 1, "keys": 64, "kv_length": 33}, 33),
        ({"length": 5, "keys": 64, "kv_length": 33, "window": 4}, 8),
        ({"length": 1, "keys": 64, "kv_length": [10, 24]}, 17),
        ({"length": 2, "keys": 64, "kv_length": [[3, 20], [7, 14]]}, 17),
    ],
)
def test_keys_that_no_query_sees_are_not_read(sizes, keys):
    sizes = {"batch": 2, "heads": 4, "kv_heads": 2, "dim": 8, "causal": True} | sizes
    needed = cost("attention", sizes)
    queries, cache = (4 * 2 * sizes["length"] * 4 * 8, 2 * 4 * 2 * 2 * 8)
    assert needed.forward.bytes == 2 * queries + keys * cache
    assert needed.backward.bytes == 4 * queries + (keys + 64) * cache


def test_a_complete_basis_has_no_residual_to_compute():
    sizes = {"batch": 1, "rows": 40, "dim": 8, "rank": 8, "iterations": 1}
    assert cost("low_rank", sizes).forward.flops == 2 * 40 * 8 * 8 + 2 * 8 * 8 * 8
