"""Options on ranks that split rows or sequences: their effect depends on the part of a rank."""

from __future__ import annotations

import pytest
from built import blocked
from rank_checks import assert_evidence, configure, needs_cores, step

from sessions.model import Configuration


def test_a_share_of_one_sample_on_each_rank_is_blocked(two_cores):
    settings = {"batch": 2, "sequence": 16}
    configuration = Configuration(family="mahia", preset="tiny", settings=settings)
    assert "all" not in blocked(configuration)["dynamic_depth"]
    options = blocked(configuration, data_parallel="2")["dynamic_depth"]
    assert options["all"].reason.startswith("a layer computes 1 of 1 sample")


def test_a_chunk_that_has_all_tokens_of_a_rank_is_blocked(two_cores):
    configuration = configure("mamba2", sequence=64)
    assert "32" not in blocked(configuration).get("ssd_chunk", {})
    options = blocked(configuration, context_parallel="2")["ssd_chunk"]
    assert options["32"].reason.startswith("one chunk holds 32 tokens anyway")
    assert "16" not in options


@pytest.mark.slow
@needs_cores
def test_sizes_that_were_tried_do_not_count_as_tokens_of_a_rank(configuration):
    compiled = {"compile": "default", "compile_shapes": "dynamic"}
    arm = step(configuration, context_parallel="2", **compiled)
    assert_evidence(arm, "context_parallel", "effective", "this rank has 8 of 16 tokens")


@pytest.mark.slow
@needs_cores
def test_no_bucket_is_said_to_be_averaged_while_a_compiled_backward_pass_runs(configuration):
    arm = step(configuration, data_parallel="2", compile="default")
    assert_evidence(arm, "data_parallel", "effective", "after the compiled backward pass")


def test_gradients_that_have_16_bits_are_not_sent_in_16_bits(configuration, two_cores):
    options = blocked(configuration, data_parallel="2", precision="bf16")["gradient_compression"]
    assert set(options) == {"bf16"} and options["bf16"].set == {"precision": "amp_bf16"}
