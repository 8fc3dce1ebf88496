"""The FLOPs of a user's model are those of its loss and gradients, whatever its optimizer does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from workbench.runner.variants.flops import counting_flops

ROWS, WIDTH = 4, 8
NEEDED = 2 * 2 * ROWS * WIDTH * WIDTH  # outputs, and gradients of the weight
OWN = SimpleNamespace(is_own_model=True, has=lambda *traits: False)


def counted(make_optimizer, *, closure: bool = False, by_name: bool = False) -> int:
    """Return the FLOPs of a step; a closure computes the loss within the optimizer's step."""
    layer, x = nn.Linear(WIDTH, WIDTH, bias=False), torch.randn(ROWS, WIDTH)
    optimizer = make_optimizer(layer.parameters())

    def loss() -> torch.Tensor:
        value = layer(x).square().mean()
        value.backward()
        return value

    facts: dict[str, int] = {}
    with counting_flops(OWN, facts):
        if closure:
            optimizer.step(closure=loss) if by_name else optimizer.step(loss)
        else:
            loss()
            optimizer.step()
    return facts["model_flops"]


class Squaring(torch.optim.Optimizer):
    """An optimizer whose update multiplies matrices, as Muon's does."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter -= 1e-3 * (parameter.grad @ parameter.grad)
        return loss


@pytest.mark.parametrize(("closure", "by_name"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, Squaring])
def test_products_of_an_optimizers_update_are_not_the_models(optimizer, closure, by_name):
    assert counted(optimizer, closure=closure, by_name=by_name) == NEEDED


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="needs torch.optim.Muon")
def test_muons_products_are_not_the_models():
    assert counted(torch.optim.Muon) == NEEDED
