"""A stage whose layers are Python functions of autograd, as Triton kernels are."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from workbench.runner.distributed.counted_stage import CountsCalls


class Scale(torch.autograd.Function):
    """Multiply by weights, as a kernel with its own backward pass."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


class LastStage(nn.Module):
    """A block, a scale and a head, whose weights come first, as a tied embedding's do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(4, 8, bias=False)
        self.block = nn.Linear(4, 4, bias=False)
        self.scales = nn.ParameterList([torch.randn(4)])

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.head(Scale.apply(self.block(x), self.scales[0])).square().mean()])


class TorchPasses:
    """The passes of ``PipelineStage`` for one micro-batch, without messages."""

    def __init__(self, module: nn.Module, x: Tensor) -> None:
        self._module, self._x, self._groups = module, x, []

    def forward_one_chunk(self, micro_batch: int) -> Tensor:
        return self._module(self._x)

    def backward_one_chunk(self, micro_batch: int, loss: Tensor, full_backward: bool) -> None:
        weights = self._module.parameters()
        _, self._groups = stage_backward_input([loss], None, [self._x], weights)

    def backward_weight_one_chunk(self, micro_batch: int) -> None:
        stage_backward_weight(self._module.parameters(), self._groups)


class Stage(CountsCalls, TorchPasses):
    """A stage that holds the graph between the two backward passes."""


class Saved:
    """A tensor that a node of the graph saved; it ends with the graph."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def test_the_graph_lives_until_the_weights_pass_has_computed_all_gradients():
    module, x = LastStage(), torch.randn(3, 4, requires_grad=True)
    expected = torch.autograd.grad(module(x).sum(), list(module.parameters()))
    stage = Stage(module, x.detach().requires_grad_())
    saved: list[weakref.ref[Saved]] = []

    def pack(tensor: Tensor) -> Saved:
        value = Saved(tensor)
        saved.append(weakref.ref(value))
        return value

    with saved_tensors_hooks(pack, lambda value: value.tensor):
        loss = stage.forward_one_chunk(0).sum()
    stage.backward_one_chunk(0, loss=loss, full_backward=False)
    assert loss.grad_fn is None, "torch released its reference"
    assert all(value() is not None for value in saved)
    stage.backward_weight_one_chunk(0)
    for parameter, gradient in zip(module.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    gc.collect()
    assert all(value() is None for value in saved)
