"""Purpose of recursions: a task that can be solved only by choosing which tokens recur.

The stack is one layer without parameters, so that only the router can learn. The layer moves the
content of an axis to the next one. Every token should end where one, two or three passes take it,
according to its kind. All tokens take the first pass; the second has room for two thirds of them
and the third for one third.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional

import kernels
from models.layers import recursion
from models.layers.recursion import ROUTINGS, MixtureOfRecursions

KINDS, OF_A_KIND, WIDTH, TRIPLES, BATCH = 3, 2, 16, 6, 16
SCATTER, ADD = kernels.token_scatter, recursion.add_weighted
AXES = KINDS + 1
# Destinations from the first axis with full weights, by recursions: each result is added to all
# before it, or to the input alone.
ENDS = {
    "expert": ((1.0, 1.0, 0.0, 0.0), (1.0, 2.0, 1.0, 0.0), (1.0, 3.0, 3.0, 1.0)),
    "token": ((1.0, 1.0, 0.0, 0.0), (1.0, 0.0, 1.0, 0.0), (1.0, 0.0, 0.0, 1.0)),
}


class Step(nn.Module):
    """One step from axis to axis; the part that names the token stays."""

    def forward(self, x_BKE, *_):
        moving, name = x_BKE.split((AXES, WIDTH - AXES), -1)
        return torch.cat((moving.roll(1, -1), name), -1)


def drawn(generator, names):
    """Draw tokens (B, S, E) and their kinds (B, S): of every three, one is of each kind."""
    order = torch.rand(BATCH, TRIPLES, KINDS, generator=generator).argsort(-1)
    kind_BS = order.flatten(1)
    which_BS = torch.randint(0, OF_A_KIND, kind_BS.shape, generator=generator)
    return names[kind_BS, which_BS], kind_BS


def learned(routing, seed, steps=200):
    """Return the fraction of tokens that end where they should, after training and before."""
    generator = torch.Generator().manual_seed(seed)
    names = torch.randn(KINDS, OF_A_KIND, WIDTH, generator=generator)
    names[..., :AXES] = torch.eye(AXES)[0]
    model = MixtureOfRecursions([Step()], WIDTH, KINDS, routing, "recursion", 1.0, 0.01)
    with torch.no_grad():
        model.router.weight.normal_(0, 0.1, generator=generator)
    ends = torch.tensor(ENDS[routing])
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)

    def right():
        x_BSE, kind_BS = drawn(torch.Generator().manual_seed(0), names)
        with torch.no_grad():
            end_BSA = model.eval()(x_BSE).x[..., :AXES]
        nearest_BS = torch.cdist(end_BSA, ends.expand(BATCH, -1, -1)).argmin(-1)
        return (nearest_BS == kind_BS).float().mean().item()

    before = right()
    model.train()
    for _ in range(steps):
        x_BSE, kind_BS = drawn(generator, names)
        result = model(x_BSE)
        loss = functional.mse_loss(result.x[..., :AXES], ends[kind_BS]) + result.loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return right(), before


def mean(routing, seeds):
    """Average ``learned``: a router that ignores a name at first may never learn it."""
    fractions = [learned(routing, seed) for seed in seeds]
    print(routing, fractions)
    return (sum(values) / len(fractions) for values in zip(*fractions, strict=True))


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_router_learns_which_tokens_need_a_second_and_which_a_third_recursion(routing):
    after, before = mean(routing, range(1, 7))
    assert after > 0.85 and before < 0.4


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize(
    "weight",
    [torch.ones_like, torch.Tensor.detach, torch.zeros_like],
    ids=["not applied", "without a gradient", "nothing"],
)
def test_a_fault_in_the_weights_of_recursions_learns_nothing(weight, routing, monkeypatch):
    monkeypatch.setattr(kernels, "token_scatter", lambda x, y, w, at: SCATTER(x, y, weight(w), at))
    monkeypatch.setattr(recursion, "add_weighted", lambda x, y, w: ADD(x, y, weight(w)))
    after, _ = mean(routing, range(1, 4))
    assert after < 0.4
