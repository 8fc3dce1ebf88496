"""The estimated footprint of a pipeline's largest stage."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peak_bytes import as_on_an_h200
from stage_bytes import stage_peak
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

from models import FAMILIES
from models.costs.precision import PRECISIONS
from models.parallel.context_parallel import splittable
from models.parallel.pipeline_footprint import _order, _peaks_in_flight, largest_stage


@given(
    ranks=st.integers(1, 4),
    rounds=st.integers(1, 4),
    chunk_bytes=st.lists(st.integers(0, 1000), min_size=2, max_size=3),
    data=st.data(),
)
def test_chunks_hold_what_is_in_flight_in_torchs_order(ranks, rounds, chunk_bytes, data):
    rank, micro_batches = data.draw(st.integers(0, ranks - 1)), rounds * ranks
    schedule = Mock(
        n_local_stages=len(chunk_bytes),
        pp_group_size=ranks,
        _n_microbatches=micro_batches,
        microbatches_per_round=ranks,
    )
    now = most = 0
    for action in ScheduleInterleaved1F1B._calculate_single_rank_operations(schedule, rank):
        if action is not None:
            sign = 1 if action.computation_type.name == "FORWARD" else -1
            now += sign * chunk_bytes[action.stage_index // ranks]
            most = max(most, now)
    assert now == 0
    order = _order(len(chunk_bytes), rank, ranks, micro_batches)
    assert max(_peaks_in_flight(chunk_bytes, *order)) == most


@pytest.mark.parametrize(
    ("weights_apart", "measured"), [(False, 2_317_138_648), (True, 2_506_671_616)]
)
def test_two_chunks_per_rank_need_what_two_h200s_did(weights_apart, measured):
    """HYDRA base in AMP BF16, 4 x 1,024 tokens; the larger peak of both ranks (torch 2.11)."""
    family = FAMILIES["hydra"]
    step = {"sequence": 1024, "precision": "amp", "workload": "train", "workspace_bytes": 64 << 20}
    with as_on_an_h200():
        estimate = largest_stage(
            family,
            family.configure("base"),
            ranks=2,
            micro_batches=4,
            chunks=2,
            weights_apart=weights_apart,
            batch=4,
            **step,
        )
    assert estimate.total == pytest.approx(measured, rel=0.05)


FEW_WORDS = {"vocabulary": 2048}  # otherwise logits would hide what blocks hold
STAGES = [
    pytest.param("hydra", FEW_WORDS, {}, marks=pytest.mark.slow),
    ("hydra", {}, {}),  # the gradient of its embedding is computed before it is added
    ("hydra", FEW_WORDS, {"checkpointing": "full"}),
    ("hydra", FEW_WORDS, {"tensor_ranks": 2}),
    ("hydra", FEW_WORDS, {"context_ranks": 2}),
    pytest.param("mamba2", FEW_WORDS, {}, marks=pytest.mark.slow),
    ("mamba2", FEW_WORDS, {"context_ranks": 2}),
    ("moe", FEW_WORDS | {"load_balance_weight": 0.0}, {}),
    ("moe", FEW_WORDS | {"load_balance_weight": 0.0}, {"tensor_ranks": 2}),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("ranks", "precision"), [(2, "amp"), pytest.param(4, "fp32", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("name", "fields", "options"), STAGES, ids=str)
def test_the_largest_stage_is_estimated_as_counted(name, fields, options, ranks, precision):
    family = FAMILIES[name]
    config = family.configure(family.first_choice, {"n_layers": 2 * ranks} | fields)
    step, micro_batches = {"batch": 8, "precision": precision}, 4
    counted = max(
        stage_peak(family, config, ranks, rank, micro_batches, sequence=512, **step, **options)
        for rank in range(ranks)
    )
    split = options.get("context_ranks", 1)
    sizes = {"sequence": 512 // split, "keys": 512 if split > 1 else 0, "attention": "triton"}
    if split > 1:
        compute = PRECISIONS[precision].compute
        parts = splittable(family, config)
        sizes["gathered"] = parts.saved_bytes(8, sizes["sequence"], split, compute)
    options = {key: value for key, value in options.items() if key != "context_ranks"}
    with as_on_an_h200():
        estimate = largest_stage(
            family, config, ranks, micro_batches, workload="train", **step, **sizes, **options
        ).total
    print(name, fields, options, ranks, precision, counted, f"{estimate / counted - 1:+.1%}")
    assert estimate == pytest.approx(counted, rel=0.05)


def test_all_micro_batches_in_flight_are_estimated_as_counted():
    case = "hydra", FEW_WORDS, {"all_forward": True}
    test_the_largest_stage_is_estimated_as_counted(*case, ranks=2, precision="amp")
