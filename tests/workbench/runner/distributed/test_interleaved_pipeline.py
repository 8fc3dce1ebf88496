"""Ranks with two chunks of blocks each train as one device does."""

from __future__ import annotations

from unittest.mock import Mock

import msgspec
import pytest
import torch
from built import blocked, collect_evidence, stepped
from hypothesis import given
from hypothesis import strategies as st
from rank_checks import assert_fault_is_noticed, assert_right, needs_cores

from models.parallel.pipeline_stages import StageOutput, stages
from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.estimate import footprint
from workbench.runner.distributed.pipeline import Pipeline
from workbench.runner.variants.variant import Variant

INTERLEAVED = {"pipeline_parallel": "2", "schedule": "interleaved"}
ZERO_BUBBLE = {"pipeline_parallel": "2", "schedule": "zero_bubble"}


@pytest.fixture(scope="module")
def configuration(small) -> Configuration:
    model = {**small.model, "n_layers": 5}
    return msgspec.structs.replace(small, model=model, settings={"batch": 4, "sequence": 16})


@pytest.fixture(scope="module")
def arms() -> VariantCache:
    return VariantCache()


@pytest.fixture(scope="module")
def interleaved(configuration, arms) -> Variant:
    """Return an arm of two ranks with two chunks each, after some steps."""
    return stepped(configuration, steps=3, arms=arms, **INTERLEAVED)


@given(n_blocks=st.integers(1, 30), ranks=st.integers(1, 4), chunks=st.integers(1, 3))
def test_chunks_have_each_block_once_in_the_order_of_their_turns(n_blocks, ranks, chunks):
    if n_blocks < ranks * chunks:
        with pytest.raises(ValueError, match=f"but the model has {n_blocks};"):
            stages([1.0] * n_blocks, ranks, chunks)
        return
    made = stages([1.0] * n_blocks, ranks, chunks)
    turns = [(stage, stage.passage(chunk)) for chunk in range(chunks) for stage in made]
    blocks = [stage.blocks[index] for stage, passage in turns for index in passage.blocks]
    assert blocks == list(range(n_blocks))
    passages = [passage for _, passage in turns]
    assert [p for p in passages if p.first] == passages[:1]
    assert [p for p in passages if p.last] == passages[-1:]
    sizes = [len(passage.blocks) for passage in passages]
    assert max(sizes) - min(sizes) <= 1


@needs_cores
def test_two_ranks_pass_each_micro_batch_twice_and_say_so(interleaved):
    evidence = collect_evidence(interleaved)
    status, text = evidence["schedule"]
    assert status == "effective", text
    assert "each rank has 2 stages; rank 0 computed 8 forward passes for 4 micro-batches" in text
    status, text = evidence["pipeline_parallel"]
    assert status == "effective", text
    assert text.startswith("blocks by pipeline rank: 3, 2, in two stages each; 4 micro-batches")
    sizes = [stage_bytes(interleaved.situation, s) for s in interleaved.divided.weights.stages]
    assert footprint(interleaved.situation).weights == max(sizes)
    assert interleaved.divided.weights.own.bytes == sizes[0]
    assert_right(interleaved)


@needs_cores
@pytest.mark.parametrize("schedule", [INTERLEAVED, ZERO_BUBBLE], ids=lambda s: s["schedule"])
def test_the_requested_micro_batches_are_seen_although_each_rank_computes_them_twice(
    configuration, arms, schedule
):
    arm = stepped(configuration, steps=2, arms=arms, **schedule, micro_batches="2")
    status, text = collect_evidence(arm)["micro_batches"]
    assert status == "effective", text
    assert text.startswith("4 rows in 2 micro-batches")


def stage_bytes(situation, stage) -> int:
    """Return the bytes of a stage's weights."""
    model = situation.family.build(situation.config)
    model.narrow(stage)
    return sum(parameter.nbytes for parameter in model.parameters())


def swap_chunks(monkeypatch) -> None:
    """Let rank 0 compute its chunks in the other order."""
    run = Pipeline.run_chunk

    def swapped(self, compute, x, targets, chunk):
        def other(x, targets):
            own = self._model.passage
            blocks = self.stage.passage(1 - chunk).blocks
            self._model.passage = own._replace(blocks=blocks)
            return compute(x, targets)

        return run(self, other, x, targets, chunk)

    monkeypatch.setattr(Pipeline, "run_chunk", swapped)


@needs_cores
def test_the_loss_of_a_stage_is_no_view_so_that_torch_frees_its_graph():
    """Torch detaches an output in place, unless it is a view. Zero bubble then keeps the graph."""
    pipeline = Mock(_applied_blocks=[0], _losses=[])
    loss = 2 * torch.ones((), requires_grad=True)
    output = Pipeline.run_chunk(pipeline, lambda *_: StageOutput(None, loss), loss, loss, 0)
    assert output.shape == (1,) and output.requires_grad and not output._is_view()


def test_the_check_of_numbers_notices_chunks_in_another_order(interleaved, monkeypatch):
    assert_fault_is_noticed(interleaved, swap_chunks, monkeypatch)


@needs_cores
def test_gradients_of_weights_are_computed_apart_and_right(configuration, arms):
    arm = stepped(configuration, steps=3, arms=arms, **ZERO_BUBBLE)
    status, text = collect_evidence(arm)["schedule"]
    assert status == "effective", text
    assert "separate gradients of weights, by rank: 8, 8" in text
    assert_right(arm, *ZERO_BUBBLE)


@pytest.mark.slow
@needs_cores
@pytest.mark.parametrize(
    ("family", "model", "toggles", "schedule"),
    [
        *(
            (*case, schedule)
            for schedule in (INTERLEAVED, ZERO_BUBBLE)
            for case in (
                ("mamba2", {"n_layers": 4}, {}),
                ("moe", {"n_layers": 4, "load_balance_weight": 0.0}, {}),
                ("hydra", {"tie_embeddings": False}, {"micro_batches": "2"}),
                ("hydra", {}, {"precision": "amp_bf16"}),
                ("hydra", {}, {"checkpointing": "full"}),
                ("hydra", {"mixture_of_depths": True}, {}),
            )
        ),
        ("hydra", {}, {"compile": "default"}, INTERLEAVED),  # blocked with zero bubble
    ],
)
def test_other_models_and_options_train_right_in_chunks(
    configuration, family, model, toggles, schedule
):
    base = configuration.model if family == "hydra" else {}
    configuration = msgspec.structs.replace(configuration, family=family, model=base | model)
    assert_right(
        stepped(configuration, steps=2, arms=VariantCache(), **schedule, **toggles), *schedule
    )


@pytest.mark.parametrize(
    ("fields", "batch", "toggles", "reason"),
    [
        ({}, 4, {"pipeline_parallel": "off"}, "needs pipeline parallelism, which is off"),
        ({"n_layers": 3}, 4, {}, "3 blocks cannot form 2 stages on each of 2 ranks"),
        ({}, 5, {}, "5 micro-batches cannot be scheduled in rounds of 2"),
        ({}, 4, {"data_parallel": "2", "sharding": "full"}, "sharding gathers all blocks"),
    ],
)
def test_what_cannot_be_interleaved_gives_a_reason(
    configuration, many_cores, fields, batch, toggles, reason
):
    model, settings = configuration.model | fields, {"batch": batch, "sequence": 16}
    configuration = msgspec.structs.replace(configuration, model=model, settings=settings)
    toggles = {"pipeline_parallel": "2", **toggles}
    options = blocked(configuration, **toggles)["schedule"]
    assert reason in options["interleaved"].reason
    assert reason in options["zero_bubble"].reason


def test_zero_bubble_is_blocked_where_compiled_code_makes_all_gradients_at_once(
    configuration, many_cores
):
    for toggles in ({"compile": "default"}, {"compile": "default", "compile_scope": "blocks"}):
        options = blocked(configuration, pipeline_parallel="2", **toggles)["schedule"]
        assert "each would be computed twice" in options["zero_bubble"].reason
        assert options["zero_bubble"].set["compile"] == "off"
        assert "interleaved" not in options
