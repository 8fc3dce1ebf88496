"""On two GPUs: ranks that keep shards make the same updates in less memory."""

from __future__ import annotations

import gc

import pytest
import torch
from built import own_peak, step_without_peer, stepped
from rank_checks import BF16, assert_right, configure, on_gpus

from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.distributed import world
from workbench.runner.instruments.memory import GpuMemory
from workbench.runner.variants.variant import Variant

pytestmark = on_gpus


# Few activations and a small embedding, so that the blocks' weights, gradients and moments are most
# of the memory: the root's weights are full until the backward pass ends.
MOSTLY_WEIGHTS = Configuration(
    family="hydra",
    preset="base",
    model={"vocabulary": 8192},
    settings={"batch": 2, "sequence": 128},
    workload="train",
)


def step_sharded(
    configuration: Configuration, sharding: str, arms: VariantCache | None = None, **toggles: str
) -> Variant:
    """Return an arm of two ranks with shards, after four steps."""
    toggles = {"data_parallel": "2", "sharding": sharding, **toggles}
    return stepped(configuration, device="cuda", steps=4, arms=arms or VariantCache(), **toggles)


@pytest.mark.parametrize("family", ["hydra", "mamba2", "adaattn", "mahia", "moe"])
@pytest.mark.parametrize("toggles", [{}, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("sharding", ["gradients", "full"])
def test_shards_on_two_gpus_train_as_one_gpu_does(family, toggles, sharding):
    arm = step_sharded(configure(family, sequence=32), sharding, **toggles)
    assert_right(arm, "sharding")


@pytest.mark.parametrize(
    ("sharding", "toggles"),
    [
        ("full", {"compile": "default"}),
        ("offload", {"adamw": "foreach"}),
        ("gradients", {"precision": "amp_fp16", "adamw": "fused"}),
        ("full", {"precision": "amp_fp16"}),
        ("full", {"checkpointing": "full"}),
        ("full", {"checkpointing": "operators", "adamw": "foreach"}),
    ],
    ids=str,
)
def test_other_options_go_with_shards(sharding, toggles):
    assert_right(step_sharded(configure(), sharding, **toggles), "sharding")


def test_a_captured_graph_continues_from_what_shards_have_trained():
    configuration, arms = configure(), VariantCache()
    captured = stepped(
        configuration,
        device="cuda",
        steps=3,
        arms=arms,
        cuda_graphs="on",
        adamw="fused",
        triton="on",
    )
    arm = step_sharded(configuration, "full", arms, adamw="fused", triton="on")
    for variant in (captured, arm, captured):
        assert_right(variant)


def test_a_killed_peer_takes_no_weights_with_it():
    configuration, arms = configure(), VariantCache()
    arm = step_sharded(configuration, "full", arms)
    before = [parameter.detach().clone() for parameter in arm.plain_weights().values()]
    with pytest.raises(world.RankError, match=r"rank 1.* was ended by SIGKILL"), arm.entered():
        arm.step()
        torch.cuda.synchronize()
        step_without_peer(arm)
    assert all(map(torch.equal, arm.plain_weights().values(), before))
    assert_right(step_sharded(configuration, "full", arms), "sharding")


def test_each_option_needs_less_memory_in_steps():
    peaks = {}
    for sharding in ("off", "gradients", "full"):
        gc.collect()
        arms = VariantCache()
        arm = step_sharded(MOSTLY_WEIGHTS, sharding, arms, adamw="fused", triton="on")
        peaks[sharding] = own_peak(arm, arms)
        weights = 4 * arm.ledger["parameters"]
        del arm, arms
    print({sharding: peak >> 20 for sharding, peak in peaks.items()}, "MiB at most")
    assert peaks["off"] > 3.9 * weights  # with two moments and the buckets of gradients
    assert peaks["gradients"] < peaks["off"] - 0.9 * weights  # half of moments and gradients
    assert peaks["full"] < peaks["gradients"] - 0.1 * weights


def test_ranks_report_like_peaks_although_another_reader_begins_a_new_one_after_the_steps():
    gc.collect()  # variants of earlier tests are in cycles
    arm = step_sharded(MOSTLY_WEIGHTS, "full")
    memory = GpuMemory(torch.device("cuda", 0), lambda arm: 0)
    with arm.entered():
        for _ in range(3):
            arm.batches.advance()
            arm.step()
        torch.cuda.synchronize()
        memory.new_phase()
    print(f"peak MiB {[peak >> 20 for peak in arm.divided.peaks]}")
    assert arm.divided.peaks[0] == pytest.approx(arm.divided.peaks[1], rel=0.15)
