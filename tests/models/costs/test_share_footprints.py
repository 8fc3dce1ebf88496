"""The estimated footprint of a rank that shards layers against its step's counted memory."""

from __future__ import annotations

from typing import Any

import pytest
from peak_bytes import as_on_an_h200, training_peak

from models import FAMILIES
from models.costs.footprint import Footprint
from models.parallel.tensor_parallel_footprint import largest_share
from models.parallel.tensor_parallel_plan import divisible

SLOW = pytest.mark.slow
CCGQA = {"ccgqa": True, "n_kv_heads": 4}
MODELS = [
    ("hydra", {}),
    ("hydra", CCGQA),
    ("hydra", {"mixture_of_depths": True}),
    ("hydra", {"mixture_of_recursions": True, "recursions": 2}),
    ("moe", {"num_shared_experts": 1}),
    ("mamba2", {}),
    ("mamba2", {"n_groups": 2, "attention_every": 2}),
    ("adaattn", {}),
    ("mahia", {"use_moe": True}),
]


def estimated(name: str, fields: dict[str, Any], ranks: int, **step: Any) -> Footprint:
    family = FAMILIES[name]
    config = family.configure("tiny", fields)
    step = {"batch": 8, "sequence": min(256, family.longest(config)), **step}
    with as_on_an_h200():
        return largest_share(family, config, ranks, workload="train", **step)


def counted(name: str, fields: dict[str, Any], ranks: int, **step: Any) -> int:
    family = FAMILIES[name]
    config = family.configure("tiny", fields)
    step = {"batch": 8, "sequence": min(256, family.longest(config)), **step}
    return training_peak(family, config, ranks=ranks, **step)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "step",
    [
        pytest.param({}, marks=SLOW),
        {"precision": "amp"},
        pytest.param({"checkpointing": "full"}, marks=SLOW),
    ],
    ids=str,
)
@pytest.mark.parametrize(("name", "fields"), MODELS, ids=str)
def test_a_rank_holds_no_more_than_is_estimated_but_what_a_whole_model_does_too(name, fields, step):
    step = {"precision": "fp32", **step}
    full = estimated(name, fields, 1, **step).total / counted(name, fields, 1, **step)
    share = estimated(name, fields, 2, **step).total / counted(name, fields, 2, **step)
    print(name, fields, step, f"{full - 1:+.1%} {share - 1:+.1%}")
    assert min(full, 1) - 0.07 < share < 1.35


@pytest.mark.sample(2)
@pytest.mark.parametrize("precision", ["fp32", "half"])
@pytest.mark.parametrize("fields", [{}, CCGQA], ids=str)
def test_what_dividing_saves_is_estimated_as_it_is(fields, precision):
    step = {"precision": precision}
    full = counted("hydra", fields, 1, **step)
    estimated_full = estimated("hydra", fields, 1, **step).total
    for along_sequence in (False, True):
        saved = full - counted("hydra", fields, 2, along_sequence=along_sequence, **step)
        share = estimated("hydra", fields, 2, along_sequence=along_sequence, **step).total
        assert estimated_full - share == pytest.approx(saved, rel=0.01), along_sequence


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize(("name", "fields"), MODELS, ids=str)
def test_more_ranks_need_less_each_and_together_no_less_than_one(
    name, fields, checkpointing, fused
):
    result = divisible(FAMILIES[name], FAMILIES[name].configure("tiny", fields))
    step = {"precision": "amp", "checkpointing": checkpointing, "fused": fused}
    every = [ranks for ranks in (1, 2, 4, 8) if not result.why_uneven(ranks)]
    totals = [estimated(name, fields, ranks, **step).total for ranks in every]
    if not fused or not any(item.fp32 for item in result.layers.values()):
        assert totals == sorted(totals, reverse=True) and totals[-1] < totals[0]
    for ranks, total in zip(every, totals, strict=True):
        assert ranks * total >= totals[0]
        if not result.why_not_split:
            along = estimated(name, fields, ranks, along_sequence=True, **step).total
            assert along <= total and ranks * along >= totals[0]


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"precision": "fp32"}, marks=SLOW),
        {"precision": "amp", "checkpointing": "full"},
        pytest.param({"precision": "amp", "attention": "manual"}, marks=SLOW),
        {"precision": "amp", "fused": False},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("hydra", {}),
        ("hydra", CCGQA),
        ("moe", {}),
        ("moe", {"num_shared_experts": 1}),
        ("mamba2", {}),
        ("mamba2", {"n_groups": 2}),
        ("mahia", {}),
        ("mahia", {"use_moe": True}),
    ],
    ids=str,
)
def test_a_rank_with_a_part_of_each_layer_is_estimated_as_counted(name, fields, options):
    family = FAMILIES[name]
    words = {"vocab_size" if name == "mahia" else "vocabulary": 2048}
    config = family.configure(family.first_choice, {"n_layers": 4} | words | fields)
    step = {"batch": 8, "sequence": 256, **options}
    peak = training_peak(family, config, ranks=2, **step)
    with as_on_an_h200():
        estimate = largest_share(family, config, 2, workload="train", **step).total
    print(name, fields, step, peak, f"{estimate / peak - 1:+.1%}")
    assert estimate == pytest.approx(peak, rel=0.05)
