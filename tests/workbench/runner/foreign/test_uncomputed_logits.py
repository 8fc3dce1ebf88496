"""Logits that are not computed act as the tensor that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import kernels
from workbench.runner.foreign.loss import Logits, patch_loss

WORDS = 20
TARGET = torch.arange(24) % WORDS


def drawn(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    hidden = torch.randn(4, 6, 8, generator=generator).to(dtype).requires_grad_()
    return hidden, torch.randn(WORDS, 8, generator=generator).to(dtype).requires_grad_()


def set_last_words(x: Any) -> Any:
    x[..., 15:] = -1e4
    return functional.cross_entropy(x.view(-1, WORDS), TARGET % 15)


def divide_in_place(x: Any) -> Any:
    x.div_(3.0)
    return functional.cross_entropy(x.float().reshape(-1, WORDS), TARGET)


def count_hits_first(x: Any) -> Any:
    with torch.no_grad():
        hits = (x.argmax(-1).flatten() == TARGET).sum()
    return functional.cross_entropy(x.flatten(0, 1), TARGET) + 0 * hits


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "flat": lambda x: x.view(-1),
    "rows of a sample": lambda x: x.reshape(4, -1),
    "more dimensions": lambda x: x.reshape(4, 2, 3, -1),
    "cat": lambda x: torch.cat([x, x[:, :2]], 1),
    "stack": lambda x: torch.stack((x[0], x[1])),
    "iterated": lambda x: sum(row.exp() for row in x),
    "length": lambda x: x / len(x),
    "comparison": lambda x: torch.where(x > 1, x, 0 * x) + (x == x).float(),
    "modulo": lambda x: 1 / (2 + abs(x)) + x % 2,
    "FP32": lambda x: x.float().log_softmax(-1),
    "FP32 of a slice": lambda x: x.float()[:, :-1].log_softmax(-1),
    "last words": set_last_words,
    "in place": divide_in_place,
    "hits": count_hits_first,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_the_same_with_its_gradients(name, dtype):
    results = []
    for make in (functional.linear, Logits):
        hidden, weight = drawn(dtype)
        y = OPERATIONS[name](make(hidden, weight))
        y.float().square().sum().backward()
        results.append((y.detach(), hidden.grad, weight.grad))
    (y, *gradients), (other, *other_gradients) = results
    assert y.shape == other.shape
    assert y.dtype == other.dtype or not y.dim()  # the operator returns FP32
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0, "atol": 0.1}
    torch.testing.assert_close(other.float(), y.float(), **tolerance)
    for x, z in zip(gradients, other_gradients, strict=True):
        assert float((x - z).norm()) <= (1e-5 if dtype == torch.float32 else 0.03) * float(x.norm())


def test_numbers_in_fp32_are_not_rounded_to_bf16():
    hidden, weight = drawn(torch.bfloat16)
    expected = functional.linear(hidden, weight).float().logsumexp(-1)
    actual = Logits(hidden, weight).float().logsumexp(-1)
    assert torch.equal(actual, expected)


class Squared(torch.autograd.Function):
    """A mean that autograd does not differentiate itself."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x + 0)
        return (x * x).mean()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2 * x / x.numel()


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_loss_that_only_its_own_autograd_function_sees_has_its_gradient(is_checkpointed):
    class Model:
        module = nn.Linear(8, WORDS, bias=False)

        def loss(self, x: Tensor) -> Tensor:
            logits = self.module(x)
            if is_checkpointed:
                return checkpoint(lambda y: y.square().mean(), logits, use_reentrant=True)
            return Squared.apply(logits)

    model, x = Model(), drawn()[0]
    gradients = []
    for is_patched in (False, True, True):
        if is_patched and len(gradients) == 1:
            assert patch_loss(model).sites
        model.module.weight.grad = None
        model.loss(x).backward()
        gradients.append(model.module.weight.grad)
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(gradients[2], gradients[0])


def test_an_output_layer_whose_forward_was_replaced_is_left_alone():
    class Model:
        module = nn.Sequential(nn.Linear(4, WORDS, bias=False))

        def loss(self, x: Tensor) -> Tensor:
            return self.module(x).sum()

    model = Model()
    head = model.module[0]
    head.forward = lambda x: 2 * functional.linear(x, head.weight)
    assert not patch_loss(model).sites
    del head.forward
    assert patch_loss(model).sites


def test_properties_compute_nothing():
    hidden, weight = drawn(torch.bfloat16)
    logits = Logits(hidden, weight)
    assert (logits.dtype, logits.float().dtype) == (torch.bfloat16, torch.float32)
    assert logits.device == hidden.device and logits.requires_grad
    with torch.autocast("cpu", torch.float16):
        assert logits.dtype == functional.linear(hidden, weight).dtype
    assert logits._tensor is None


def test_a_look_at_the_logits_leaves_the_loss_fused(monkeypatch):
    calls = []
    fused = kernels.linear_cross_entropy
    monkeypatch.setattr(
        kernels, "linear_cross_entropy", lambda *a, **k: calls.append(1) or fused(*a, **k)
    )
    logits = Logits(*drawn())
    logits.detach().argmax(-1)
    functional.cross_entropy(logits.float().view(-1, WORDS), TARGET)
    assert calls
