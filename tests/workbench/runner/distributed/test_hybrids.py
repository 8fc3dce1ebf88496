"""Kinds of parallelism that combine on one mesh of four ranks train as one device does."""

from __future__ import annotations

import os

import msgspec
import pytest
from built import blocked, stepped
from hypothesis import given
from hypothesis import strategies as st
from rank_checks import assert_right, needs_cores

from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.distributed import world
from workbench.runner.distributed.mesh import Layout

DATA, TENSOR = {"data_parallel": "2"}, {"tensor_parallel": "2"}
PIPELINE, FULL = {"pipeline_parallel": "2"}, {"sharding": "full"}
SEQUENCE, CONTEXT = {"sequence_parallel": "on"}, {"context_parallel": "2"}


@pytest.fixture(scope="module", autouse=True)
def four_cores():
    """Let four ranks share the cores, and end them with this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
        yield
    world.close()


@pytest.fixture(scope="module")
def configuration(small) -> Configuration:
    return msgspec.structs.replace(
        small, model={**small.model, "n_kv_heads": 2}, settings={"batch": 4, "sequence": 16}
    )


def assert_toggles_right(
    configuration: Configuration, arms: VariantCache | None = None, **toggles: str
) -> None:
    """Assert that every kind takes effect and that the numbers are one device's."""
    assert_right(stepped(configuration, steps=2, arms=arms or VariantCache(), **toggles), *toggles)


COMBINATIONS = [
    {**DATA, **TENSOR},
    {**DATA, **PIPELINE},
    {**TENSOR, **PIPELINE},
    {**DATA, **TENSOR, **FULL, **SEQUENCE},
    {**DATA, **PIPELINE, **FULL},
    {"data_parallel": "4", "sharding": "hybrid"},
    {**DATA, **CONTEXT},
    {**DATA, **CONTEXT, **FULL},
    {**CONTEXT, **TENSOR, **SEQUENCE},
    {**CONTEXT, **PIPELINE},
    {"context_parallel": "4"},
]
EXPERTS = {"expert_parallel": "2"}


@needs_cores
@pytest.mark.parametrize("count", [1, pytest.param(len(COMBINATIONS), marks=pytest.mark.slow)])
def test_kinds_combine_on_four_ranks_over_the_same_weights(configuration, count):
    arms = VariantCache()
    for toggles in COMBINATIONS[:count]:
        assert_toggles_right(configuration, arms, **toggles)


@pytest.mark.slow
@needs_cores
@pytest.mark.parametrize(
    ("family", "model"),
    [
        ("hydra", {"n_kv_heads": 2}),
        ("mamba2", {"n_groups": 2}),
        ("mamba2", {}),
        ("moe", {"load_balance_weight": 0.0}),
        ("adaattn", {"adaptive_rank": False, "adaptive_precision": False}),
        ("adaattn", {}),
        ("mahia", {}),
    ],
)
def test_hybrids_are_right_in_every_family(configuration, family, model):
    configuration = msgspec.structs.replace(configuration, family=family, model=model)
    assert_toggles_right(configuration, **DATA, **TENSOR)
    assert_toggles_right(configuration, **DATA, **TENSOR, **FULL)
    if family not in ("adaattn", "mahia"):  # no chains of blocks
        assert_toggles_right(configuration, **DATA, **PIPELINE)
        assert_toggles_right(configuration, **TENSOR, **PIPELINE)
    if "context_parallel" not in blocked(configuration):
        assert_toggles_right(configuration, **DATA, **CONTEXT)
    if family == "moe":
        assert_toggles_right(configuration, **DATA, **EXPERTS)
        assert_toggles_right(configuration, **CONTEXT, **EXPERTS)


@pytest.mark.slow
@needs_cores
def test_eight_ranks_train_right(configuration):
    configuration = msgspec.structs.replace(configuration, settings={"batch": 8, "sequence": 16})
    assert_toggles_right(configuration, **DATA, **TENSOR, **PIPELINE)
    assert_toggles_right(configuration, data_parallel="8", sharding="full")


SIZES = st.sampled_from([1, 2, 3])
LAYOUTS = st.builds(Layout, *[SIZES] * len(Layout._fields))


@given(LAYOUTS.filter(lambda layout: layout.ranks <= 100))
def test_ranks_of_a_layout_have_distinct_coordinates_and_tensor_groups_are_neighbours(layout):
    coordinates = [layout.coordinates(rank) for rank in range(layout.ranks)]
    assert len(set(coordinates)) == layout.ranks
    for rank, at in enumerate(coordinates):
        assert all(0 <= index < size for index, size in zip(at, layout, strict=True))
        assert 0 <= layout.data_rank(rank) < layout.data
        assert rank - at.tensor == coordinates.index(at._replace(tensor=0))
    for stage in range(layout.pipeline):
        assert coordinates[layout.first_of_stage(stage)] == Layout(stage, *[0] * (len(layout) - 1))


def test_a_batch_that_hybrids_cannot_share_is_blocked(configuration):
    toggles = {**PIPELINE, "micro_batches": "4"}
    reason = blocked(configuration, **toggles)["data_parallel"]["2"].reason
    assert reason == "a batch of 4 cannot be divided among 2 ranks and 4 micro-batches"
