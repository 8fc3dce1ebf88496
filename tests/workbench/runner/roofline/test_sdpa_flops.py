"""FLOPs of attention with grouped heads, also by formulas of torch that refuse them."""

from __future__ import annotations

import pytest
import torch
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from workbench.runner.roofline import sdpa_flops

NAME = "_scaled_dot_product_flash_attention_for_cpu"


def refusing(formula):
    """Return a formula as torch before 2.13 has it."""

    def count(*args, out_val=None, **kwargs):
        shapes = [getattr(x, "shape", x) for x in args if len(getattr(x, "shape", x) or ()) == 4]
        assert len({shape[1] for shape in shapes}) == 1, "shapes are incompatible"
        return formula(*args, out_val=out_val, **kwargs)

    return count


@pytest.fixture(params=[False, True], ids=["this torch", "an older one"])
def registry(request, monkeypatch):
    entries = dict(flop_registry)
    if request.param:
        for name in (NAME, f"{NAME}_backward"):
            operator = getattr(torch.ops.aten, name)
            plain = getattr(entries[operator], "__wrapped__", entries[operator])
            monkeypatch.setitem(flop_registry, operator, refusing(plain))
    sdpa_flops.register()


def counted(kv_heads: int) -> int:
    q = torch.randn(2, 4, 16, 8, requires_grad=True)
    k, v = (torch.randn(2, kv_heads, 16, 8, requires_grad=True) for _ in range(2))
    with FlopCounterMode(display=False) as counter:
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        out.sum().backward()
    return counter.get_total_flops()


def test_grouped_heads_count_as_many_as_query_heads(registry):
    assert flop_counter.flop_registry is flop_registry
    assert counted(2) == counted(1) == counted(4) > 0
