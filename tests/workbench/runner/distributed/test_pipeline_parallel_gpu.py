"""On two GPUs: ranks that have stages of a model train as one does, each in less memory."""

from __future__ import annotations

import pytest
import torch
from built import collect_evidence, own_peak, step_without_peer, stepped
from test_ranks_gpu import BF16, ended, pytestmark  # noqa: F401 - a fixture, and marks

from sessions.model import Configuration
from workbench.runner.distributed import world
from workbench.runner.experiments import checks
from workbench.runner.numerics import comparison
from workbench.runner.variants.variant import Arm, Arms

ON = {"pipeline_parallel": "2"}


def right(arm: Arm) -> None:
    """Assert that it took effect and that its numbers are right."""
    status, text = collect_evidence(arm)["pipeline_parallel"]
    assert status == "effective", text
    checked = comparison.check(arm, arm.situation)
    assert checked.ok, checked.text


def asked(family: str, **model: object) -> Configuration:
    settings = {"batch": 4, "sequence": 128 if family == "hydra" else 32}
    return Configuration(
        family=family, preset="tiny", settings=settings, workload="train", model=model
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
    one = asked(family, **model)
    right(stepped(one, device="cuda", steps=4, arms=Arms(), **ON, **toggles))


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
    ],
    ids=str,
)
def test_other_options_go_with_it(toggles):
    arm = stepped(asked("hydra"), device="cuda", steps=4, arms=Arms(), **ON, **toggles)
    status = {name: one for name, (one, _) in collect_evidence(arm).items() if name in toggles}
    assert set(status.values()) <= {"effective"}, collect_evidence(arm)
    right(arm)


def test_arms_of_one_and_of_two_gpus_go_on_from_each_other():
    arms = Arms()
    stepped(asked("hydra"), device="cuda", steps=3, arms=arms)
    right(stepped(asked("hydra"), device="cuda", steps=3, arms=arms, **ON))
    plain = stepped(asked("hydra"), device="cuda", steps=3, arms=arms)
    checked = comparison.check(plain, plain.situation)
    assert checked.ok, checked.text


def test_no_step_waits_for_the_host_or_leaves_memory_behind():
    arm = stepped(asked("hydra"), device="cuda", steps=4, arms=Arms(), **ON, **BF16)
    for result in (checks.no_syncs(arm), checks.steady_memory(arm, 8)):
        assert result.status == "pass", (result.evidence, result.lines)


def test_a_killed_peer_lets_the_gpu_go_on_from_the_weights_before():
    arms = Arms()
    arm = stepped(asked("hydra"), device="cuda", arms=arms, **ON)
    before = [each.detach().clone() for each in arm.plain_weights().values()]
    with pytest.raises(world.RankError, match=r"rank 1.* was ended by SIGKILL"), arm.entered():
        step_without_peer(arm)
    for each, kept in zip(arm.plain_weights().values(), before, strict=True):
        assert torch.equal(each, kept)
    right(stepped(asked("hydra"), device="cuda", steps=2, arms=arms, **ON))


def test_a_rank_has_less_memory():
    """Of what the arm itself holds and computes; how long stages wait is for a verdict to say."""
    base = Configuration(
        family="hydra", preset="base", settings={"batch": 8, "sequence": 1024}, workload="train"
    )
    peaks = []
    for toggles in ({}, ON):
        arms = Arms()
        arm = stepped(base, device="cuda", steps=4, arms=arms, **toggles, **BF16)
        own = own_peak(arm, arms)
        peaks.append([own, *(arm.divided.peaks[1:] if arm.divided else [])])
        del arm, arms
        torch.cuda.empty_cache()
    print(f"peak MiB {[[peak >> 20 for peak in each] for each in peaks]}")
    assert max(peaks[1]) < 0.85 * peaks[0][0]
