"""Layers that ranks shard: the shards together equal the layer, in every family.

The ranks of these tests are threads of one process, and their region adds up the parts. Nothing
here depends on ``torch.distributed``.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hang_limit import HANG_S
from torch import Tensor

from models import FAMILIES
from models.model import Model
from models.parallel.tensor_parallel_plan import Cut, Region, divide, divisible

RANKS = 2
# Small, with every layer that is sharded: by family, the preset and changed fields.
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "attention and SwiGLU": ("hydra", {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2}),
    "compressed attention, depths and recursions": (
        "hydra",
        {
            **{"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 4},
            **{"ccgqa": True, "mixture_of_depths": True, "mixture_of_recursions": True},
            **{"recursions": 2, "recursion_kv": "recursion"},
        },
    ),
    "shared keys of recursions": (
        "hydra",
        {
            **{"dim": 32, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2, "recursions": 2},
            **{"mixture_of_recursions": True, "recursion_kv": "share"},
        },
    ),
    "experts": ("moe", {"n_layers": 2, "num_shared_experts": 1}),
    "mixer and attention": (
        "mamba2",
        {
            **{"dim": 32, "n_layers": 2, "attention_every": 2, "n_heads": 4, "n_kv_heads": 2},
            **{"head_dim": 8, "n_groups": 2, "d_state": 8},
        },
    ),
    "a mixer of one group": (
        "mamba2",
        {"dim": 32, "n_layers": 2, "attention_every": 0, "head_dim": 8, "d_state": 8},
    ),
    "adaptive": ("adaattn", {"dim": 32, "n_layers": 2, "n_heads": 4}),
    "classifier": ("mahia", {"use_moe": True, "n_layers": 1}),
}


class Sums(Region):
    """Region that adds up the ranks' parts, in their order, as ``torch.distributed`` would."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank, self._meeting = rank, meeting

    def enter(self, x: Tensor, product: bool = False) -> Tensor:
        return _Enter.apply(x, functools.partial(self._meeting.sum, self.rank))

    def leave(self, y: Tensor) -> Tensor:
        return _Leave.apply(y, functools.partial(self._meeting.sum, self.rank))

    def common(self, x: Tensor) -> Tensor:
        return _Enter.apply(x, functools.partial(self._meeting.sum, self.rank))

    def total(self, x: Tensor) -> Tensor:
        return self.common(self.leave(x))


class Meeting:
    """Barrier at which the threads exchange their parts."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(RANKS, timeout=HANG_S)
        self._brought: list[Tensor | None] = [None] * RANKS

    def sum(self, rank: int, x: Tensor) -> Tensor:
        self._brought[rank] = x
        self._barrier.wait()
        total = functools.reduce(torch.add, self._brought)
        self._barrier.wait()
        return total


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, add: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.add = add
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.add(gradient), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, add: Callable[[Tensor], Tensor]) -> Tensor:
        return add(y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


@dataclasses.dataclass
class Trained:
    """Loss in FP64, and its gradients by name."""

    loss: float
    gradients: dict[str, Tensor]


def trained(model: Model, batch: tuple[Tensor, ...]) -> Trained:
    loss = model.train().loss(*batch)
    named = model.weights()
    computed = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    gradients = [
        torch.zeros_like(parameter) if gradient is None else gradient
        for parameter, gradient in zip(named.values(), computed, strict=True)
    ]
    return Trained(float(loss.detach()), dict(zip(named, gradients, strict=True)))


def both(
    name: str, region: Callable[[int, Meeting], Region] = Sums
) -> tuple[Trained, list[Trained], dict[str, Cut]]:
    """Return the results of the full model and of each rank, and the sharding."""
    family_name, fields = SMALL[name]
    family = FAMILIES[family_name]
    config = family.configure("tiny", fields)
    full = family.materialise(config, dtype=torch.float64)
    cuts = divide(family.build(config), RANKS, Region())
    generator = torch.Generator().manual_seed(1)
    if family.draw is None:
        tokens = torch.randint(config.vocabulary, (2, 13), generator=generator)
        batch = tokens[:, :-1], tokens[:, 1:]
    else:
        inputs, targets = family.draw(config, 2, 12, generator)
        batch = (*inputs, *targets)
    batch = tuple(x.double() if x.is_floating_point() else x for x in batch)
    meeting = Meeting()

    def of_rank(rank: int) -> Trained:
        taken = {
            parameter_name: torch.nn.Parameter(
                cuts[parameter_name].shard(weight.detach(), rank, RANKS)
            )
            if parameter_name in cuts
            else weight
            for parameter_name, weight in full.weights().items()
        }
        return trained(family.share_divided(config, taken, RANKS, region(rank, meeting)), batch)

    with ThreadPoolExecutor(RANKS) as pool:
        shares = list(pool.map(of_rank, range(RANKS)))
    return trained(full, batch), shares, cuts


def farthest(full: Trained, shares: list[Trained], cuts: dict[str, Cut]) -> float:
    """Return the largest difference of losses and gradients; the latter are relative."""
    differences = [abs(share.loss - full.loss) for share in shares]
    for rank, share in enumerate(shares):
        for name, gradient in share.gradients.items():
            expected = full.gradients[name]
            if name in cuts:
                expected = cuts[name].shard(expected, rank, RANKS)
            largest = float(full.gradients[name].abs().max()) or 1.0
            differences.append(float((gradient - expected).abs().max()) / largest)
    return max(differences)


@pytest.mark.parametrize("name", SMALL)
def test_ranks_have_the_loss_and_the_gradients_of_the_whole_model(name):
    full, shares, cuts = both(name)
    assert cuts and farthest(full, shares, cuts) < 1e-10
    replicated = [name_ for name_ in full.gradients if name_ not in cuts]
    for name_ in replicated:  # what every rank has stays alike to the last bit
        assert torch.equal(shares[0].gradients[name_], shares[1].gradients[name_]), name_


class NoSumForward(Sums):
    """Faulty region: each rank continues with its own part of a layer's result."""

    def leave(self, y: Tensor) -> Tensor:
        return y


class NoSumBackward(Sums):
    """Faulty region: each rank continues with its own part of the gradient."""

    def enter(self, x: Tensor, product: bool = False) -> Tensor:
        return x


class NoSumCommon(Sums):
    """Faulty region: gradients of what all ranks compute within a layer are not summed."""

    def common(self, x: Tensor) -> Tensor:
        return x


class NoTotal(Sums):
    """Faulty region: each rank normalises by its own channels."""

    def total(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize(
    ("name", "region"),
    [
        ("attention and SwiGLU", NoSumForward),
        ("attention and SwiGLU", NoSumBackward),
        ("experts", NoSumForward),
        ("experts", NoSumCommon),
        ("a mixer of one group", NoSumCommon),
        ("a mixer of one group", NoTotal),
    ],
)
def test_a_missing_sum_is_seen(name, region):
    assert farthest(*both(name, region)) > 1e-3


def test_a_share_of_other_columns_is_seen(monkeypatch):
    shard = Cut.shard
    # The halves of gate and up in sequence, not the half of each.
    monkeypatch.setattr(
        Cut,
        "shard",
        lambda self, full, rank, ranks: shard(
            Cut(self.axis, (sum(self.sections),)), full, rank, ranks
        ),
    )
    full, shares, _cuts = both("attention and SwiGLU")
    assert abs(shares[0].loss - full.loss) > 1e-5


@pytest.mark.parametrize(
    "cut", [Cut(0, (4, 2, 2)), Cut(1, (6,)), Cut(2, (2, 8)), Cut(1, (4, 3, 2), (1,))]
)
def test_shares_put_back_are_the_whole(cut):
    shape = [3, 3, 3]
    shape[cut.axis] = sum(cut.sections)
    full = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    made = torch.full_like(full, torch.nan)
    shares = [cut.shard(full, rank, RANKS) for rank in range(RANKS)]
    for rank, share in enumerate(shares):
        cut.write_back(share, made, rank, RANKS)
    assert torch.equal(made, full)
    assert sum(share.numel() for share in shares) == 2 * full.numel() - cut.sharded_numel(full)
    for index, part in zip(cut.replicated, cut.replicated_sections(shares[1], RANKS), strict=True):
        assert torch.equal(part, full.split(cut.sections, cut.axis)[index])


@pytest.mark.parametrize("name", SMALL)
def test_a_share_is_smaller_by_what_is_cut(name):
    family_name, fields = SMALL[name]
    family = FAMILIES[family_name]
    config = family.configure("tiny", fields)
    plan = divisible(family, config)
    model = family.build(config)
    divide(model, RANKS, Region())
    assert (
        sum(parameter.numel() for parameter in model.parameters())
        == plan.numel - plan.sharded_numel // RANKS
    )
    assert plan.sharded_numel > 0 and plan.numel == family.parameter_count(config)


def test_what_does_not_divide_evenly_is_refused_with_the_layer():
    family = FAMILIES["hydra"]
    config = family.presets["tiny"]
    assert (
        divisible(family, config).why_uneven(4)
        == "the number of key/value heads, 2, is not a multiple of the number of ranks, 4"
    )
    with pytest.raises(ValueError, match=r"key/value heads of blocks.0.attention, 2, is not"):
        divide(family.build(config), 4, Region())


def test_what_stays_whole_says_why():
    families = FAMILIES["adaattn"], FAMILIES["mahia"]
    reasons_by_family = [
        divisible(family, family.presets["tiny"]).replicated for family in families
    ]
    assert all(len(reasons) == 1 for reasons in reasons_by_family)
