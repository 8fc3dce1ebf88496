"""On two GPUs: ranks that keep shares make the same updates, and hold less memory."""

from __future__ import annotations

import gc

import pytest
import torch
from built import collect_evidence, own_peak, step_without_peer, stepped
from test_ranks_gpu import BF16, ended, pytestmark  # noqa: F401 - a fixture, and marks

from sessions.model import Configuration
from workbench.runner.distributed import world
from workbench.runner.numerics import comparison
from workbench.runner.variants.variant import Arms


def shared(asked, stage, arms=None, steps=4, **toggles):
    ranks = {"data_parallel": "2", "sharding": stage}
    return stepped(asked, device="cuda", steps=steps, arms=arms or Arms(), **ranks, **toggles)


@pytest.mark.parametrize("family", ["hydra", "mamba2", "adaattn", "mahia", "moe"])
@pytest.mark.parametrize("toggles", [{}, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("stage", ["gradients", "full"])
def test_shares_on_two_gpus_train_as_one_gpu_does(family, toggles, stage):
    settings = {"batch": 4, "sequence": 32}
    asked = Configuration(family=family, preset="tiny", settings=settings, workload="train")
    arm = shared(asked, stage, **toggles)
    status, text = collect_evidence(arm)["sharding"]
    assert status == "effective", text
    checked = comparison.check(arm, arm.situation)
    assert checked.ok, checked.text


@pytest.mark.parametrize(
    ("stage", "toggles"),
    [
        ("full", {"compile": "default"}),
        ("offload", {"adamw": "foreach"}),
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
    assert collect_evidence(arm)["sharding"][0] == "effective", collect_evidence(arm)["sharding"][1]
    checked = comparison.check(arm, arm.situation)
    assert checked.ok, checked.text


def test_a_captured_graph_continues_from_what_shards_have_trained():
    settings = {"batch": 4, "sequence": 128}
    asked = Configuration(family="hydra", preset="tiny", settings=settings, workload="train")
    arms = Arms()
    captured = stepped(
        asked, device="cuda", steps=3, arms=arms, cuda_graphs="on", adamw="fused", triton="on"
    )
    arm = shared(asked, "full", arms, adamw="fused", triton="on")
    for variant in (captured, arm, captured):
        checked = comparison.check(variant, variant.situation)
        assert checked.ok, checked.text


def test_a_killed_peer_takes_no_weights_with_it():
    settings = {"batch": 4, "sequence": 128}
    asked = Configuration(family="hydra", preset="tiny", settings=settings, workload="train")
    arms = Arms()
    arm = shared(asked, "full", arms)
    before = [each.detach().clone() for each in arm.plain_weights().values()]
    with pytest.raises(world.RankError, match=r"rank 1.* was ended by SIGKILL"), arm.entered():
        arm.step()
        torch.cuda.synchronize()
        step_without_peer(arm)
    assert all(map(torch.equal, arm.plain_weights().values(), before))
    again = shared(asked, "full", arms)
    assert collect_evidence(again)["sharding"][0] == "effective"
    checked = comparison.check(again, again.situation)
    assert checked.ok, checked.text


def test_each_option_needs_less_memory_in_steps():
    # Few activations, so that weights, gradients and moments are most of the memory.
    asked = Configuration(
        family="hydra", preset="base", settings={"batch": 2, "sequence": 128}, workload="train"
    )
    peaks = {}
    for stage in ("off", "gradients", "full"):
        gc.collect()
        arms = Arms()
        arm = shared(asked, stage, arms, adamw="fused", triton="on")
        peaks[stage] = own_peak(arm, arms)
        del arm, arms
    weights = 4 * 114_150_144
    print({stage: peak >> 20 for stage, peak in peaks.items()}, "MiB at most")
    assert peaks["off"] > 3.9 * weights  # with two moments and the buckets of gradients
    assert peaks["gradients"] < peaks["off"] - 0.9 * weights  # half of moments and gradients
    assert peaks["full"] < peaks["gradients"] - 0.1 * weights
