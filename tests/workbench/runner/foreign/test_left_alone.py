"""Modules that an operator would compute otherwise stay as they are."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.runner.foreign.experts import patch_experts
from workbench.runner.foreign.gated_mlp import patch_gated_mlp
from workbench.runner.foreign.norms import patch_rms_norm

DIM = 12


class Norm(nn.Module):
    """RMSNorm whose result has a factor, which a subclass may change."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(DIM))
        self.eps = 1e-6
        self.set_factor(factor)

    def set_factor(self, factor: float) -> None:
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return y * self.weight * self.factor


class BufferNorm(Norm):
    def set_factor(self, factor: float) -> None:
        self.register_buffer("factor", torch.tensor(factor))


class TensorNorm(Norm):
    def set_factor(self, factor: float) -> None:
        self.factor = torch.tensor(factor)


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(DIM, 16, False), nn.Linear(DIM, 16, False)
        self.down = nn.Linear(16, DIM, False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class ChosenMLP(MLP):
    """Has its activation as a method that the constructor chooses."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.activation = getattr(self, name)

    def silu(self, x: Tensor) -> Tensor:
        return functional.silu(x)

    def relu(self, x: Tensor) -> Tensor:
        return functional.relu(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Scaled(nn.Module):
    """SiLU with a temperature that is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("temperature", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(x * self.temperature)


class DroppingMLP(MLP):
    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.silu(self.gate(x)) * self.up(x)
        return self.down(functional.dropout(hidden, 0.5, self.training))


class WideMLP(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).float()


def swiglu(model: nn.Module) -> dict[str, str]:
    return patch_gated_mlp("swiglu", model).sites


@pytest.mark.parametrize("kind", [BufferNorm, TensorNorm])
def test_a_norm_with_a_tensor_that_may_change_is_left_alone(kind):
    module = nn.ModuleList([kind(), kind(0.5)])
    assert not patch_rms_norm(module).sites


def test_layers_are_judged_by_the_method_that_they_chose():
    module, x = nn.ModuleList([ChosenMLP("silu"), ChosenMLP("relu")]), torch.randn(3, DIM)
    expected = [layer(x) for layer in module]
    assert list(swiglu(module)) == ["0"]
    for layer, y in zip(module, expected, strict=True):
        torch.testing.assert_close(layer(x), y)


def test_a_layer_whose_activation_has_a_buffer_is_left_alone():
    class Layer(MLP):
        def __init__(self) -> None:
            super().__init__()
            self.activation = Scaled()

        def forward(self, x: Tensor) -> Tensor:
            return self.down(self.activation(self.gate(x)) * self.up(x))

    assert not swiglu(nn.ModuleList([Layer()]))


def test_a_probe_does_not_call_the_activation_of_the_model():
    class Counted(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return functional.silu(x)

    class Layer(MLP):
        def __init__(self) -> None:
            super().__init__()
            self.activation = Counted()

        def forward(self, x: Tensor) -> Tensor:
            return self.down(self.activation(self.gate(x)) * self.up(x))

    layer = Layer()
    swiglu(nn.ModuleList([layer]))
    assert not layer.activation.calls


@pytest.mark.parametrize("is_training", [False, True])
def test_dropout_is_seen_in_whatever_mode_the_file_left_the_model(is_training):
    module = nn.ModuleList([DroppingMLP()]).train(is_training)
    assert not swiglu(module)
    assert all(layer.training is is_training for layer in module.modules())


def test_a_layer_that_returns_fp32_is_left_alone():
    assert not swiglu(nn.ModuleList([WideMLP()]))
    assert swiglu(nn.ModuleList([MLP()]))


def test_a_module_that_cannot_be_copied_is_left_alone():
    norm, layer = Norm(), MLP()
    norm.lock = layer.lock = threading.Lock()
    assert not patch_rms_norm(nn.ModuleList([norm])).sites
    assert not swiglu(nn.ModuleList([layer]))


def test_small_weights_beside_an_offset_are_not_rounded_away():
    class Gemma(Norm):
        def forward(self, x: Tensor) -> Tensor:
            wide = x.float()
            y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
            return (y * (1 + self.weight.float())).type_as(x)

    norm = Gemma().bfloat16()
    with torch.no_grad():
        norm.weight.fill_(2**-9)  # 1 + 2^-9 is 1 in BF16
    x = torch.randn(4096, DIM, dtype=torch.bfloat16)
    expected = norm(x)
    assert patch_rms_norm(nn.ModuleList([norm])).sites
    actual = norm(x)
    assert torch.equal(actual, expected)


def test_a_norm_that_returns_the_dtype_of_its_weight_does_so_for_wide_inputs():
    class T5Norm(Norm):
        def forward(self, x: Tensor) -> Tensor:
            y = x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
            return self.weight * (y.to(self.weight.dtype) if self.weight.itemsize == 2 else y)

    norm = T5Norm().bfloat16()
    inputs = [torch.randn(3, DIM, dtype=dtype) for dtype in (torch.bfloat16, torch.float32)]
    expected = [norm(x) for x in inputs]
    assert patch_rms_norm(nn.ModuleList([norm])).sites
    for x, y in zip(inputs, expected, strict=True):
        torch.testing.assert_close(norm(x), y)


class Experts(nn.Module):
    """Promotes to the dtype of the routing weights."""

    def __init__(self) -> None:
        super().__init__()
        self.joined = nn.Parameter(torch.randn(3, 16, DIM))
        self.down = nn.Parameter(torch.randn(3, DIM, 8))

    def forward(self, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        gate, up = torch.einsum("td,efd->tef", x, self.joined).chunk(2, -1)
        out = torch.einsum("tef,edf->ted", functional.silu(gate) * up, self.down)
        chosen = out.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))
        return (chosen * weight[..., None]).sum(1)


def test_routing_weights_in_fp32_keep_the_sum_in_fp32():
    module = Experts().bfloat16()
    index = torch.stack([torch.randperm(3)[:2] for _ in range(7)])
    x, weight = torch.randn(7, DIM, dtype=torch.bfloat16), torch.rand(7, 2)
    expected = module(x, index, weight)
    assert patch_experts(nn.ModuleList([module])).sites
    assert module(x, index, weight).dtype == expected.dtype == torch.float32
    assert torch.equal(module(x, index, weight), expected)
    assert module(x, index, weight.bfloat16()).dtype == torch.bfloat16
