"""Gradients of cuDNN's attention are right in whichever layout the output's gradient comes."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import kernels
from kernels.attention._cudnn_gradient import like_output

BATCH, HEADS, SHARED, LENGTH, WIDTH = 2, 8, 2, 256, 64


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)], ids=["heads first", "tokens first"])
@pytest.mark.parametrize("given", [(0, 1, 2, 3), (0, 2, 1, 3)], ids=["heads first", "tokens first"])
def test_a_gradient_gets_the_layout_of_the_output_and_keeps_its_numbers(order, given):
    out = torch.empty(2, 3, 5, 8).permute(order).contiguous().permute(order)
    grad = torch.rand(2, 3, 5, 8).permute(given).contiguous().permute(given)
    laid = like_output(grad, out)
    assert laid.stride() == out.stride() and torch.equal(laid, grad)
    assert (laid is grad) == (order == given), "copied only where it must be"


def test_a_gradient_between_aligned_addresses_is_copied():
    grad = torch.rand(2 * 3 * 5 * 8 + 1)[1:].view(2, 3, 5, 8)
    laid = like_output(grad, torch.empty(2, 3, 5, 8))
    assert laid.data_ptr() % 16 == 0 and torch.equal(laid, grad)


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch has no CUDA")
def test_torch_calls_it_for_every_backward_pass_of_cudnn():
    kernel = torch.library.get_kernel("aten::_scaled_dot_product_cudnn_attention_backward", "CUDA")
    assert "_cudnn_gradient.py" in repr(kernel)


def torchs(q, k, v):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def ours(q, k, v):
    return kernels.attention(q, k, v, backend="sdpa_cudnn")


@pytest.mark.gpu
@pytest.mark.parametrize("call", [ours, torchs, torch.compile(torchs)], ids=lambda c: c.__name__)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layouts_of_the_outputs_gradient_may_change_in_a_process(call, dtype):
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v, grad = (
        torch.randn(
            BATCH, LENGTH, heads, WIDTH, device="cuda", dtype=dtype, generator=generator
        ).transpose(1, 2)
        for heads in (HEADS, SHARED, SHARED, HEADS)
    )
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    with sdpa_kernel(SDPBackend.MATH):
        out = scaled_dot_product_attention(*exact, is_causal=True, enable_gqa=True)
    expected = torch.autograd.grad(out, exact, grad.double())
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    for given in (grad, grad.contiguous(), grad):
        for own, right in zip(
            torch.autograd.grad(call(*leaves), leaves, given), expected, strict=True
        ):
            assert float((own.double() - right).norm() / right.norm()) < 0.01
