"""An autograd function that kernels launch in: its forward pass alone, and its derivatives."""

from __future__ import annotations

import pytest
import torch

import kernels
from kernels.core import autograd, triton_helpers

pytestmark = [
    pytest.mark.skipif(not triton_helpers.INSTALLED, reason="Triton is not installed"),
    pytest.mark.skipif(
        triton_helpers.INTERPRETED, reason="the interpreter keeps no compiled kernels"
    ),
]


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    @autograd.once_differentiable
    def backward(ctx, dy):
        return 2 * dy


def test_a_forward_pass_alone_gives_what_the_recorded_one_gives():
    x = torch.randn(3, requires_grad=True)
    recorded = autograd.applied(Double, x)
    assert torch.autograd.grad(recorded.sum(), x)[0].tolist() == [2.0] * 3
    with torch.no_grad():
        alone = autograd.applied(Double, x)
    assert torch.equal(alone, recorded) and not alone.requires_grad


def test_derivatives_that_a_function_does_not_have_are_refused_as_torch_refuses_them():
    x = torch.randn(3, requires_grad=True)
    y = autograd.applied(Double, x)
    (once,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
    assert torch.equal(once, 8 * x)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        once.sum().backward()
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(3), torch.ones(3))
        with pytest.raises(NotImplementedError, match="jvp"):
            autograd.applied(Double, dual)
    refused = pytest.raises(
        kernels.Unavailable, match=r"Double cannot be transformed by torch\.func"
    )
    for transform in (torch.func.vmap, torch.func.grad):
        for recorded in (False, True):
            with torch.set_grad_enabled(recorded), refused:
                transform(lambda x: autograd.applied(Double, x))(torch.ones(2, 3))
