"""Memory of a rank that has a part of the experts: estimated, and counted in its step."""

from __future__ import annotations

import pytest
from peak_bytes import as_on_an_h200, training_peak
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from models import FAMILIES
from models.parallel.expert_parallel import divide_experts, install
from models.parallel.expert_parallel_footprint import experts_footprint
from workbench.runner.distributed import experts
from workbench.runner.distributed.experts import RankExchange

RANKS = 2


@pytest.fixture
def even_exchange(monkeypatch) -> None:
    """Let every rank receive as many rows as it sends, from ranks that are not there."""
    monkeypatch.setattr(experts, "is_communicating", lambda axis: True)
    monkeypatch.setattr(
        experts,
        "all_to_all",
        lambda rows, received, sent, axis: rows.new_empty((sum(received), *rows.shape[1:])),
    )


@pytest.mark.sample(4)
@pytest.mark.usefixtures("even_exchange")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"precision": "fp32"}, marks=pytest.mark.slow),
        {"precision": "amp"},
        {"precision": "amp", "checkpointing": "full"},
        pytest.param({"precision": "amp", "checkpointing": "third"}, marks=pytest.mark.slow),
        {"precision": "amp", "fused": False},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "fields",
    [{}, {"top_k": 4}, {"num_shared_experts": 1}, {"vocabulary": 2048}],
    ids=str,
)
def test_a_rank_with_a_part_of_the_experts_is_estimated_as_counted(fields, options, monkeypatch):
    family = FAMILIES["moe"]
    config = family.configure(family.first_choice, {"n_layers": 6} | fields)
    step = {"batch": 2, "sequence": 1024, **options}
    choices = 2 * 1024 * config.top_k
    monkeypatch.setattr(FakeTensor, "tolist", lambda _: [[choices // RANKS] * RANKS] * 2)

    def divide_model(model: nn.Module) -> None:
        divide_experts(model, RANKS)
        install(model, RankExchange(RANKS, config.num_experts))

    counted = training_peak(family, config, divide_model=divide_model, **step)
    with as_on_an_h200():
        estimate = experts_footprint(family, config, RANKS, workload="train", **step).total
    print(fields, step, counted, f"{estimate / counted - 1:+.1%}")
    assert estimate == pytest.approx(counted, rel=0.02)
