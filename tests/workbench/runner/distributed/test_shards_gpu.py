"""On two GPUs: ranks that keep shares make the same updates, and hold less memory."""

from __future__ import annotations

import gc

import pytest
import torch
from built import found, step_without_peer, stepped
from test_ranks_gpu import BF16, ended, pytestmark  # noqa: F401 - a fixture, and marks

from sessions.model import Configuration
from workbench.runner.distributed import world
from workbench.runner.numerics import comparison
from workbench.runner.ranks.shards import STAGES
from workbench.runner.variants.variant import Arms


def shared(asked, stage, arms=None, steps=4, **toggles):
    ranks = {"data_parallel": "2", "sharding": stage}
    return stepped(asked, device="cuda", steps=steps, arms=arms or Arms(), **ranks, **toggles)


@pytest.mark.parametrize("family", ["hydra", "mamba2", "adaattn", "mahia", "moe"])
@pytest.mark.parametrize("toggles", [{}, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("stage", ["optimizer", "full"])
def test_shares_on_two_gpus_train_as_one_gpu_does(family, toggles, stage):
    settings = {"batch": 4, "sequence": 32}
    asked = Configuration(family=family, preset="tiny", settings=settings, workload="train")
    arm = shared(asked, stage, **toggles)
    status, text = found(arm)["sharding"]
    assert status == "effective", text
    checked = comparison.check(arm, arm.situation)
    assert checked.ok, checked.text


@pytest.mark.parametrize(
    ("stage", "toggles"),
    [
        ("gradients", {"compile": "default"}),
        ("gradients", {"activation_offload": "on"}),
        ("gradients", {"precision": "amp_fp16", "adamw": "fused"}),
        ("full", {"precision": "amp_fp16"}),
        ("full", {"checkpointing": "full"}),
        ("full", {"checkpointing": "operators", "adamw": "foreach"}),
    ],
    ids=lambda each: each if isinstance(each, str) else "+".join(each.values()),
)
def test_other_options_go_with_shares(stage, toggles):
    settings = {"batch": 4, "sequence": 128}
    asked = Configuration(family="hydra", preset="tiny", settings=settings, workload="train")
    arm = shared(asked, stage, **toggles)
    assert found(arm)["sharding"][0] == "effective", found(arm)["sharding"][1]
    checked = comparison.check(arm, arm.situation)
    assert checked.ok, checked.text


def test_weights_stay_where_a_captured_graph_reads_them_and_it_goes_on_from_the_shares():
    settings = {"batch": 4, "sequence": 128}
    asked = Configuration(family="hydra", preset="tiny", settings=settings, workload="train")
    arms = Arms()
    captured = stepped(
        asked, device="cuda", steps=3, arms=arms, cuda_graphs="on", adamw="fused", triton="on"
    )
    before = [each.data_ptr() for each in captured.model.parameters()]
    arm = shared(asked, "full", arms, adamw="fused", triton="on")
    assert "captured graphs of others" in found(arm)["sharding"][1]
    assert [each.data_ptr() for each in captured.model.parameters()] == before
    checked = comparison.check(captured, captured.situation)
    assert checked.ok, checked.text


def test_a_killed_peer_takes_no_weights_with_it():
    settings = {"batch": 4, "sequence": 128}
    asked = Configuration(family="hydra", preset="tiny", settings=settings, workload="train")
    arms = Arms()
    arm = shared(asked, "full", arms)
    before = [each.detach().clone() for each in arm.model.parameters()]
    with pytest.raises(world.RankError, match=r"rank 1.* was ended by SIGKILL"), arm.entered():
        arm.step()
        torch.cuda.synchronize()
        step_without_peer(arm)
    assert all(map(torch.equal, arm.model.parameters(), before))
    again = shared(asked, "full", arms)
    assert found(again)["sharding"][0] == "effective"
    checked = comparison.check(again, again.situation)
    assert checked.ok, checked.text


def test_each_stage_holds_less_while_it_steps():
    # Few activations, so that weights, gradients and moments are most of what is held.
    asked = Configuration(
        family="hydra", preset="base", settings={"batch": 2, "sequence": 128}, workload="train"
    )
    stood, peaks = {}, {}
    for stage in ("off", *STAGES):
        gc.collect()
        before = torch.cuda.memory_allocated()
        arm = shared(asked, stage, adamw="fused", triton="on")
        with arm.entered():
            arm.step()
            torch.cuda.synchronize()
            stood[stage] = torch.cuda.memory_allocated() - before
            torch.cuda.reset_peak_memory_stats()
            for _ in range(3):
                arm.batches.advance()
                arm.step()
            torch.cuda.synchronize()
            peaks[stage] = torch.cuda.max_memory_allocated() - before
        del arm
    weights = 4 * 114_150_144
    print({stage: (stood[stage] >> 20, peaks[stage] >> 20) for stage in stood}, "MiB, stood, peak")
    # Without shares: weights, two moments and the buckets of gradients.
    assert stood["off"] > 3.9 * weights
    # Half of the moments go, and half of the gradients is added to their buckets.
    assert stood["optimizer"] < stood["off"] - 0.4 * weights
    # No buckets any more.
    assert stood["gradients"] < stood["optimizer"] - 0.9 * weights
    # Half of the blocks' weights.
    assert stood["full"] < stood["gradients"] - 0.2 * weights
    assert peaks["optimizer"] < peaks["off"] - 0.3 * weights
    assert peaks["gradients"] < peaks["optimizer"] - 0.1 * weights
