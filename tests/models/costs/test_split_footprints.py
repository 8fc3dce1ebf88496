"""Memory of a rank that has a part of every sequence: estimated, and counted in its step."""

from __future__ import annotations

from typing import Any

import pytest
from peak_bytes import FORMATS, as_on_an_h200, training_peak

from models import FAMILIES
from models.costs.precision import PRECISIONS
from models.parallel.context_parallel import install, splittable
from workbench.runner.distributed.context import SplitContext

FEW_WORDS = {"vocabulary": 2048}  # otherwise logits would hide what blocks hold
FIXED = {"adaptive_rank": False, "adaptive_precision": False}


def assert_estimated(
    name: str, fields: dict[str, Any], ranks: int, *, error: float, batch: int = 4, **step: Any
) -> None:
    """Check the estimate for the last rank, which sees all keys."""
    family = FAMILIES[name]
    config = family.configure(family.first_choice, fields)
    context, length = SplitContext(ranks, ranks - 1), 512
    step = {"batch": batch, "attention": "triton", **step}
    counted = training_peak(
        family,
        config,
        sequence=ranks * length,
        divide_model=lambda model: install(model, context),
        **step,
    )
    compute = PRECISIONS[step["precision"]].compute
    gathered = splittable(family, config).saved_bytes(batch, length, ranks, compute)
    split = {"sequence": length, "keys": ranks * length, "gathered": gathered}
    with as_on_an_h200():
        estimate = family.footprint(config, workload="train", **split, **step).total
    print(name, fields, ranks, step, counted, f"{estimate / counted - 1:+.1%}")
    assert estimate == pytest.approx(counted, rel=error)


@pytest.mark.sample(5)
@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("hydra", {}),
        ("hydra", {"ccgqa": True, "n_kv_heads": 4}),
        ("mamba2", {"attention_every": 0}),
        ("mamba2", {}),
        ("moe", {}),
        ("adaattn", FIXED),
        ("adaattn", FIXED | {"default_precision": "fp16"}),  # keys are rounded in FP32
    ],
    ids=str,
)
def test_a_rank_with_a_part_of_each_sequence_is_estimated_as_counted(
    name, fields, ranks, precision
):
    fields = FEW_WORDS | {"n_layers": 4} | fields
    assert_estimated(name, fields, ranks, error=0.02, precision=precision)


@pytest.mark.sample(2)
@pytest.mark.parametrize("fused", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "checkpointing"),
    [("hydra", "fourth"), ("hydra", "third"), ("hydra", "selective"), ("hydra", "operators"),
     ("hydra", "full"), ("mamba2", "full"),
     pytest.param("mamba2", "fourth", marks=pytest.mark.slow),
     pytest.param("mamba2", "third", marks=pytest.mark.slow),
     pytest.param("mamba2", "selective", marks=pytest.mark.slow),
     pytest.param("mamba2", "operators", marks=pytest.mark.slow)],
)  # fmt: skip
def test_recomputed_blocks_gather_again(name, checkpointing, fused):
    fields = FEW_WORDS | {"n_layers": 8}
    step = {"precision": "amp", "checkpointing": checkpointing, "fused": fused}
    assert_estimated(name, fields, 4, error=0.05, **step)


@pytest.mark.sample(2)
@pytest.mark.parametrize("attention", ["manual", "chunked", "sdpa_math"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_attentions_weights_are_those_of_all_keys(ranks, attention):
    fields = FEW_WORDS | {"n_layers": 4}
    assert_estimated("hydra", fields, ranks, error=0.05, precision="amp", attention=attention)


def test_a_scan_that_begins_with_previous_tokens_saves_their_state():
    """With eight sequences a scan has one segment, and saves no state otherwise."""
    fields = FEW_WORDS | {"n_layers": 6, "attention_every": 0}
    assert_estimated("mamba2", fields, 2, error=0.02, batch=8, precision="amp")
