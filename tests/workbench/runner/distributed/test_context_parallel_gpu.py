"""On two GPUs: ranks that split sequences, or have different experts, train as one does."""

from __future__ import annotations

import pytest
from built import collect_evidence, stepped
from rank_checks import BF16, assert_less_memory, assert_right, configure, on_gpus

from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.variants.variant import Variant

pytestmark = on_gpus
CONTEXT, EXPERTS = {"context_parallel": "2"}, {"expert_parallel": "2"}
PLAIN_HEADS = {"adaptive_rank": False, "adaptive_precision": False}


def step_on_two(
    configuration: Configuration, arms: VariantCache | None = None, **toggles: str
) -> Variant:
    """Return an arm after four steps."""
    return stepped(configuration, device="cuda", steps=4, arms=arms or VariantCache(), **toggles)


@pytest.mark.parametrize(
    ("family", "model"),
    [
        ("hydra", {}),
        ("hydra", {"window": 40}),
        ("hydra", {"ccgqa": True, "n_kv_heads": 4}),
        ("mamba2", {}),
        ("mamba2", {"n_groups": 2, "attention_every": 0}),
        ("moe", {"num_shared_experts": 1}),
        ("adaattn", PLAIN_HEADS),
    ],
)
@pytest.mark.parametrize("toggles", [{}, BF16], ids=["fp32", "bf16"])
def test_split_sequences_train_right_in_every_family(family, model, toggles):
    configuration = configure(family, sequence=128, **model)
    assert_right(step_on_two(configuration, **CONTEXT, **toggles), *CONTEXT)


@pytest.mark.parametrize("toggles", [{}, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("model", [{}, {"num_shared_experts": 1}, {"capacity_factor": 1.0}])
def test_divided_experts_train_right(model, toggles):
    assert_right(step_on_two(configure("moe", **model), **EXPERTS, **toggles), *EXPERTS)


@pytest.mark.parametrize(
    "toggles",
    [
        {"compile": "default"},
        {"compile": "default", **BF16},
        {"compile": "default", "compile_scope": "blocks", **BF16},
        {"checkpointing": "full"},
        {"checkpointing": "operators"},
        {"precision": "amp_fp16"},
        {"fused_loss": "triton"},
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["hydra", "mamba2"])
def test_other_options_combine_with_split_sequences(family, toggles):
    arm = step_on_two(configure(family, sequence=128), **CONTEXT, **toggles)
    evidence = collect_evidence(arm)
    statuses = {status for name, (status, _) in evidence.items() if name in toggles}
    assert statuses <= {"effective"}, evidence
    assert_right(arm, *CONTEXT)


@pytest.mark.parametrize(
    "toggles", [{"checkpointing": "full"}, {"precision": "amp_fp16"}, {"adamw": "fused"}], ids=str
)
def test_other_options_combine_with_divided_experts(toggles):
    assert_right(step_on_two(configure("moe"), **EXPERTS, **toggles), *EXPERTS)


def test_a_rank_needs_less_memory_for_a_long_sequence():
    assert_less_memory("context_parallel", sequence=2048)
