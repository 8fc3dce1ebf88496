"""FlexAttention in graphs: Dynamo traces its masks."""

import pytest
import torch
from subjects import DEVICE

import kernels


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def local_after_global(q, k, v, backend="flex"):
    """Attend to all earlier keys, then to a few of them: two masks in one graph."""
    y = kernels.attention(q, k, v, causal=True, backend=backend)
    return kernels.attention(y, k, v, causal=True, window=7, backend=backend)


@torch.no_grad()
def test_calls_with_different_masks_are_one_graph():
    torch.manual_seed(0)
    compiled = torch.compile(local_after_global, fullgraph=True, dynamic=False, backend="eager")
    for length in (33, 150):
        q, k, v = (torch.randn(2, heads, length, 16, device=DEVICE) for heads in (4, 2, 2))
        expected = local_after_global(q, k, v, backend="manual")
        torch.testing.assert_close(compiled(q, k, v), expected, rtol=1e-4, atol=1e-4)
