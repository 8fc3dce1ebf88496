"""The least work of an optimizer's update does not depend on how its operators are arranged."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sessions.tracing import kinds
from workbench.runner.roofline.counter import Call, Tally

SHAPES = ((40, 30), (500,), (8, 8, 8))
NUMBERS = sum(torch.Size(shape).numel() for shape in SHAPES)


def counted(optimizer: torch.optim.Optimizer) -> Tally:
    """Return the counted work of the optimizer's second update."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    tally = Tally(torch.device("cpu"))
    with tally.looking(), tally.counting(optimizer):
        optimizer.step()
    return tally


def parameters(*shapes: tuple[int, ...]) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(shape)) for shape in shapes]


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_adamw_needs_weights_gradients_and_moments_once(options, amsgrad):
    tally = counted(torch.optim.AdamW(parameters(*SHAPES), amsgrad=amsgrad, **options))
    (least,) = tally.least
    moments = 3 if amsgrad else 2
    expected = 4 * NUMBERS * ((2 + moments) + (1 + moments))
    assert least.name == kinds.OPTIMIZER and least.flops == 0
    assert least.bytes == pytest.approx(expected, abs=8 * 2 * len(SHAPES))  # step counts
    assert least.bytes <= sum(call.bytes for call in tally.calls)


def test_memory_that_an_update_writes_before_it_reads_is_not_read():
    """The average is overwritten by the gradient, and then read."""

    class Last(torch.optim.Optimizer):
        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                average = self.state[parameter].setdefault("average", torch.ones_like(parameter))
                average.copy_(parameter.grad)
                with torch.no_grad():
                    parameter.view(-1).sub_(average.view(-1))

    (least,) = counted(Last(parameters((25, 4)), {})).least
    assert least.bytes == 4 * 100 * (2 + 2)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="needs torch.optim.Muon")
def test_the_products_of_an_update_are_part_of_its_least_work():
    tally = counted(torch.optim.Muon(parameters((32, 16))))
    (least,) = tally.least
    assert least == Call(kinds.OPTIMIZER, 4 * 32 * 16 * 5, least.flops, "bfloat16")
    assert least.flops == sum(call.flops for call in tally.calls) > 0
