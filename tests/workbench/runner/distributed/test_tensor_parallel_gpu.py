"""On two GPUs: ranks that divide layers train as one does, in less memory."""

from __future__ import annotations

import pytest
from built import collect_evidence, stepped
from rank_checks import BF16, assert_less_memory, assert_right, configure, on_gpus

from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.variants.variant import Variant

pytestmark = on_gpus


def step_divided(
    configuration: Configuration, arms: VariantCache | None = None, **toggles: str
) -> Variant:
    """Return an arm of two ranks that divide layers, after four steps."""
    toggles = {"tensor_parallel": "2", **toggles}
    workload = configuration.workload
    return stepped(
        configuration, workload, device="cuda", steps=4, arms=arms or VariantCache(), **toggles
    )


@pytest.mark.parametrize("family", ["hydra", "mamba2", "adaattn", "mahia", "moe"])
@pytest.mark.parametrize("toggles", [{}, BF16], ids=["fp32", "bf16"])
def test_two_gpus_train_as_one_does(family, toggles):
    assert_right(step_divided(configure(family), **toggles), "tensor_parallel")


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
    assert_right(step_divided(configure(family, **model), **BF16), "tensor_parallel")


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
    arm = step_divided(configure(), **toggles)
    evidence = collect_evidence(arm)
    statuses = {status for name, (status, _) in evidence.items() if name in toggles}
    assert statuses <= {"effective"}, evidence
    assert_right(arm, "tensor_parallel")


def test_the_forward_pass_is_divided_too():
    arm = step_divided(configure(workload="forward"), precision="amp_bf16", triton="on")
    assert_right(arm, "tensor_parallel")


def test_arms_of_one_and_of_two_gpus_go_on_from_each_other():
    configuration, arms = configure(), VariantCache()
    stepped(configuration, device="cuda", steps=3, arms=arms)
    assert_right(step_divided(configuration, arms), "tensor_parallel")
    assert_right(stepped(configuration, device="cuda", steps=3, arms=arms))


def test_a_rank_has_less_memory_and_computes_less():
    # Of time nothing is asserted: verdicts measure how long the sums take.
    assert_less_memory("tensor_parallel", sequence=1024)
