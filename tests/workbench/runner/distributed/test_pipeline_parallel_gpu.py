"""On two GPUs: ranks with stages of a model train as one does, in less memory."""

from __future__ import annotations

import pytest
import torch
from built import collect_evidence, own_peak, step_without_peer, stepped
from rank_checks import BF16, assert_right, configure, on_gpus

from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.distributed import world
from workbench.runner.experiments import checks
from workbench.runner.variants.variant import Variant

pytestmark = on_gpus
ON = {"pipeline_parallel": "2"}


def step_on_gpu(
    configuration: Configuration, steps: int, arms: VariantCache | None = None, **toggles: str
) -> Variant:
    return stepped(
        configuration, device="cuda", steps=steps, arms=arms or VariantCache(), **toggles
    )


@pytest.mark.parametrize(
    ("family", "model"),
    [
        ("hydra", {}),
        ("hydra", {"tie_embeddings": False}),
        ("hydra", {"mixture_of_depths": True}),
        ("mamba2", {}),
        ("moe", {"load_balance_weight": 0.0}),
    ],
)
@pytest.mark.parametrize("toggles", [{}, BF16], ids=["fp32", "bf16"])
def test_two_gpus_train_as_one_does(family, model, toggles):
    arm = step_on_gpu(configure(family, **model), 4, **ON, **toggles)
    assert_right(arm, "pipeline_parallel")


@pytest.mark.parametrize(
    "toggles",
    [
        {"checkpointing": "full"},
        {"checkpointing": "operators"},
        {"precision": "amp_fp16"},
        {"precision": "amp_fp16", "adamw": "fused"},
        {"precision": "bf16"},
        {"precision": "tf32"},
        {"fused_loss": "triton"},
        {"triton": "on", "micro_batches": "2"},
        {"compile": "default", "compile_scope": "blocks"},
        {"schedule": "interleaved"},
        {"schedule": "interleaved", **BF16},
        {"schedule": "zero_bubble", **BF16},
        {"schedule": "zero_bubble", "fused_loss": "triton"},
        {"schedule": "interleaved", "compile": "default", "compile_scope": "blocks"},
    ],
    ids=str,
)
def test_other_options_go_with_it(toggles):
    arm = step_on_gpu(configure(), 4, **ON, **toggles)
    evidence = collect_evidence(arm)
    statuses = {status for name, (status, _) in evidence.items() if name in toggles}
    assert statuses <= {"effective"}, evidence
    assert_right(arm, "pipeline_parallel")


def test_arms_of_one_and_of_two_gpus_go_on_from_each_other():
    configuration, arms = configure(), VariantCache()
    step_on_gpu(configuration, 3, arms)
    assert_right(step_on_gpu(configuration, 3, arms, **ON), "pipeline_parallel")
    assert_right(step_on_gpu(configuration, 3, arms))


def test_no_step_waits_for_the_host_or_leaves_memory_behind():
    arm = step_on_gpu(configure(), 4, **ON, **BF16)
    for result in (checks.no_syncs(arm), checks.steady_memory(arm, 8)):
        assert result.status == "pass", (result.evidence, result.lines)


def test_a_killed_peer_lets_the_gpu_go_on_from_the_weights_before():
    configuration, arms = configure(), VariantCache()
    arm = step_on_gpu(configuration, 1, arms, **ON)
    before = [parameter.detach().clone() for parameter in arm.plain_weights().values()]
    with pytest.raises(world.RankError, match=r"rank 1.* was ended by SIGKILL"), arm.entered():
        step_without_peer(arm)
    for parameter, copy in zip(arm.plain_weights().values(), before, strict=True):
        assert torch.equal(parameter, copy)
    assert_right(step_on_gpu(configuration, 2, arms, **ON), "pipeline_parallel")


def test_a_rank_has_less_memory():
    # Of time nothing is asserted: verdicts measure how long stages wait.
    configuration = Configuration(
        family="hydra", preset="base", settings={"batch": 8, "sequence": 1024}, workload="train"
    )
    peaks = []
    for toggles in ({}, ON):
        arms = VariantCache()
        arm = step_on_gpu(configuration, 4, arms, **toggles, **BF16)
        own = own_peak(arm, arms)
        peaks.append([own, *(arm.divided.peaks[1:] if arm.divided else [])])
        del arm, arms
        torch.cuda.empty_cache()
    print(f"peak MiB by rank {[[peak >> 20 for peak in by_rank] for by_rank in peaks]}")
    assert max(peaks[1]) < 0.85 * peaks[0][0]
