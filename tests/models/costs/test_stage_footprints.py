"""The estimated footprint of a pipeline's largest stage."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peak_bytes import as_on_an_h200
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

from models import FAMILIES
from models.parallel.pipeline_footprint import _peak_in_flight, largest_stage


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
    assert _peak_in_flight(chunk_bytes, rank, ranks, micro_batches) == most


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
