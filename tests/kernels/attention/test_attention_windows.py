"""Attention's windows in its own kernels: any number of keys, however large."""

import pytest
import torch
from subjects import DEVICE, implementations

import kernels
from kernels import OPS

pytestmark = pytest.mark.skipif(
    "triton" not in implementations(OPS["attention"]),
    reason="on CPUs these run in the interpreter, by test_interpreted_kernels.py",
)


@pytest.mark.parametrize("window", [40, 1 << 29, (1 << 31) - 1, 1 << 40])
@pytest.mark.parametrize("causal", [True, False])
def test_a_window_that_holds_all_keys_is_none(causal, window):
    """Multiplied by the four heads that share these keys, some need more than 32 bits."""
    torch.manual_seed(0)
    leaves = [torch.randn(1, n, 40, 16, device=DEVICE, requires_grad=True) for n in (4, 1, 1)]
    dout = torch.randn(1, 4, 40, 16, device=DEVICE)

    def results(window):
        out = kernels.attention(*leaves, causal=causal, window=window, backend="triton")
        return out, *torch.autograd.grad(out, leaves, dout)

    for first, other in zip(results(window), results(None), strict=True):
        assert torch.equal(first, other)
