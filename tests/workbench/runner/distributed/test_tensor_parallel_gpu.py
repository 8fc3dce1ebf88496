"""On two GPUs: ranks that divide layers train as one does, each in less memory."""

from __future__ import annotations

import pytest
import torch
from built import collect_evidence, own_peak, stepped
from test_ranks_gpu import BF16, ended, pytestmark  # noqa: F401 - a fixture, and marks

from sessions.model import Configuration
from workbench.runner.numerics import comparison
from workbench.runner.variants.variant import Arm, Arms


def right(arm: Arm) -> None:
    """Assert that it took effect and that its numbers are right."""
    status, text = collect_evidence(arm)["tensor_parallel"]
    assert status == "effective", text
    checked = comparison.check(arm, arm.situation)
    assert checked.ok, checked.text


def asked(family: str, workload: str = "train", **model: object) -> Configuration:
    settings = {"batch": 4, "sequence": 128 if family == "hydra" else 32}
    return Configuration(
        family=family, preset="tiny", settings=settings, workload=workload, model=model
    )


@pytest.mark.parametrize("family", ["hydra", "mamba2", "adaattn", "mahia", "moe"])
@pytest.mark.parametrize("toggles", [{}, BF16], ids=["fp32", "bf16"])
def test_two_gpus_train_as_one_does(family, toggles):
    right(
        stepped(asked(family), device="cuda", steps=4, arms=Arms(), tensor_parallel="2", **toggles)
    )


@pytest.mark.parametrize(
    ("family", "model"),
    [
        ("mamba2", {"n_groups": 2}),
        ("moe", {"num_shared_experts": 1}),
        ("hydra", {"ccgqa": True, "n_kv_heads": 4}),
        ("hydra", {"mixture_of_recursions": True}),
    ],
)
def test_layers_that_only_some_models_have_are_divided_too(family, model):
    one = asked(family, **model)
    right(stepped(one, device="cuda", steps=4, arms=Arms(), tensor_parallel="2", **BF16))


@pytest.mark.parametrize(
    "toggles",
    [
        {"compile": "default"},
        {"compile": "default", **BF16},
        {"checkpointing": "full"},
        {"checkpointing": "operators"},
        {"precision": "amp_fp16"},
        {"precision": "amp_fp16", "adamw": "fused"},
        {"fused_loss": "triton"},
        {"sequence_parallel": "on"},
        {"sequence_parallel": "on", **BF16},
        {"sequence_parallel": "on", "checkpointing": "full"},
        {"sequence_parallel": "on", "compile": "default"},
        {"sequence_parallel": "on", "precision": "amp_fp16"},
    ],
    ids=str,
)
def test_other_options_go_with_it(toggles):
    arm = stepped(
        asked("hydra"), device="cuda", steps=4, arms=Arms(), tensor_parallel="2", **toggles
    )
    status = {name: one for name, (one, _) in collect_evidence(arm).items() if name in toggles}
    assert set(status.values()) <= {"effective"}
    right(arm)


def test_the_forward_pass_is_divided_too():
    one, toggles = asked("hydra", "forward"), {"precision": "amp_bf16", "triton": "on"}
    arm = stepped(
        one, "forward", device="cuda", steps=4, arms=Arms(), tensor_parallel="2", **toggles
    )
    right(arm)


def test_arms_of_one_and_of_two_gpus_go_on_from_each_other():
    arms = Arms()
    stepped(asked("hydra"), device="cuda", steps=3, arms=arms)
    arm = stepped(asked("hydra"), device="cuda", steps=3, arms=arms, tensor_parallel="2")
    right(arm)
    plain = stepped(asked("hydra"), device="cuda", steps=3, arms=arms)
    checked = comparison.check(plain, plain.situation)
    assert checked.ok, checked.text


def test_a_rank_has_less_memory_and_computes_less():
    """Of what the arm itself holds and computes; how long the sums take is for a verdict to say."""
    base = Configuration(
        family="hydra", preset="base", settings={"batch": 1, "sequence": 1024}, workload="train"
    )
    peaks = []
    for ranks in ("off", "2"):
        arms = Arms()
        arm = stepped(base, device="cuda", steps=4, arms=arms, tensor_parallel=ranks, **BF16)
        peaks.append(own_peak(arm, arms))
        del arm, arms
        torch.cuda.empty_cache()
    print(f"peak MiB {[peak >> 20 for peak in peaks]}")
    assert peaks[1] < 0.85 * peaks[0]
