"""Evidence of options with pipeline stages describes the steps of all ranks."""

from __future__ import annotations

import msgspec
import pytest
from built import blocked
from rank_checks import assert_evidence, configure, needs_cores, step

STAGES = {"pipeline_parallel": "2"}


@needs_cores
def test_attention_of_all_stages_is_counted(configuration):
    arm = step(configuration, **STAGES)
    assert_evidence(arm, "attention", "effective", "0 of 12 calls fell back")  # 3 blocks, 4 batches


@needs_cores
def test_checkpointed_blocks_are_those_of_this_rank(configuration):
    arm = step(configuration, **STAGES, checkpointing="full")
    assert_evidence(arm, "checkpointing", "effective", "recomputes 2 blocks of this rank's 2;")


@needs_cores
@pytest.mark.parametrize(
    ("schedule", "in_flight"), [("interleaved", "5, 3"), ("zero_bubble", "4, 4")]
)
def test_a_rank_with_two_stages_counts_forward_passes_in_flight(configuration, schedule, in_flight):
    model = {**configuration.model, "n_layers": 4}
    arm = step(msgspec.structs.replace(configuration, model=model), **STAGES, schedule=schedule)
    shown = f"4 micro-batches, forward passes in flight at most: {in_flight};"
    assert_evidence(arm, "pipeline_parallel", "effective", shown)


@needs_cores
def test_blocks_without_a_next_block_on_their_rank_are_not_said_to_be_checkpointed():
    configuration = configure("mamba2", n_layers=2)
    arm = step(configuration, **STAGES, fused_add_norm="torch")
    assert_evidence(arm, "fused_add_norm", "no effect", "no block is followed by another block")


@pytest.mark.slow
@needs_cores
def test_no_size_is_tried_with_stages(configuration):
    arm = step(configuration, **STAGES, compile="default", compile_shapes="dynamic")
    assert_evidence(arm, "compile_shapes", "unknown", "computes micro-batches that other ranks")


@pytest.mark.parametrize("count", ["1", "auto"])
def test_gpipe_is_blocked_where_1f1b_runs_the_same_passes(configuration, many_cores, count):
    ranks = "2" if count == "1" else "8"  # a batch of four has four micro-batches
    model = {**configuration.model, "n_layers": 8}
    configuration = msgspec.structs.replace(configuration, model=model)
    toggles = {"pipeline_parallel": ranks, "micro_batches": count}
    why = blocked(configuration, **toggles)["schedule"]["gpipe"]
    assert "1F1B also runs all forward passes before all backward passes" in why.reason
    assert "schedule" not in blocked(configuration, **STAGES)
