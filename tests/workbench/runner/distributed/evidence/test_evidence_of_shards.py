"""Evidence of options with sharded weights, which all ranks have to gather together."""

from __future__ import annotations

import pytest
from built import blocked, collect_evidence
from rank_checks import assert_evidence, needs_cores, step

SHARDS = {"data_parallel": "2", "sharding": "full"}


@needs_cores
def test_evidence_that_calls_the_model_gathers_the_shards_of_all_ranks(configuration):
    arm = step(configuration, **SHARDS, attention="sdpa", sdp_flash="forbidden")
    assert_evidence(arm, "attention", "no effect", "torch chose math 3")
    assert_evidence(arm, "sdp_flash", "effective", "3 SDPA calls ran math")
    assert_evidence(arm, "sharding", "effective")
    with arm.entered():
        arm.step()


@needs_cores
def test_weights_of_this_shard_are_rounded(configuration):
    arm = step(configuration, **SHARDS, quantized_training="int8")
    assert_evidence(arm, "quantized_training", "effective", "rounding changed 97")


@needs_cores
def test_modules_of_a_field_are_compared_without_their_shards(configuration):
    arm = step(configuration, **SHARDS, mixture_of_depths="on")
    _, text = collect_evidence(arm)["mixture_of_depths"]
    assert "FSDP" not in text and " instead of " in text, text


def test_what_blocks_compute_cannot_be_saved_in_parts_where_sharding_compiles_them(
    configuration, two_cores
):
    options = blocked(configuration, **SHARDS, compile="default")["checkpointing"]
    assert set(options) == {"operators"}
    assert options["operators"].reason.startswith("sharding compiles each block separately")
    assert "checkpointing" not in blocked(configuration, **SHARDS)


@pytest.mark.slow
@needs_cores
def test_compiled_blocks_are_the_default_with_shards_and_no_size_is_tried(configuration):
    compiled = {"compile": "default", "compile_scope": "blocks", "compile_shapes": "dynamic"}
    arm = step(configuration, **SHARDS, **compiled)
    assert_evidence(arm, "compile_scope", "as default", "sharding compiles each block separately")
    assert_evidence(arm, "compile_shapes", "unknown", "each call gathers the shards of all ranks")
