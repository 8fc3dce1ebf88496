"""Evidence of an option when another option changes what it does."""

from __future__ import annotations

import re

import pytest
from built_arms import CPU, blocked, configuration, evidence_of, stepped

from kernels.core import measured
from workbench.runner.config.resolve import resolve
from workbench.runner.profiling import instrumented
from workbench.runner.toggles import Trait, _kernel_toggle, torchscript


@pytest.fixture
def fuses(monkeypatch):
    """Let the CPU count as a device whose operators TorchScript can fuse."""
    monkeypatch.setattr(torchscript, "can_fuse", lambda device: True)


def test_what_checkpointing_saves_is_counted_in_the_precision_of_the_steps():
    texts = []
    for precision in ("fp32", "amp_bf16"):
        toggles = {"checkpointing": "full", "precision": precision}
        arm = stepped(configuration("hydra", "train", toggles=toggles))
        texts.append(evidence_of(arm, "checkpointing").text)
    saved = [re.search(r"saves (.*)", text)[1] for text in texts]
    assert saved[0] != saved[1]


def test_attention_in_a_recorded_graph_is_seen(fuses):
    toggles = {"torchscript": "trace", "attention": "sdpa", "sdp_flash": "forbidden"}
    arm = stepped(configuration("hydra", toggles=toggles))
    evidence = evidence_of(arm, "sdp_flash")
    assert evidence.status == "effective" and "with flash allowed" in evidence.text
    assert evidence_of(arm, "torchscript").text.startswith("TorchScript fused no operators")


def test_a_graph_is_not_recorded_with_the_triton_kernel_of_one_operator(fuses):
    why = blocked(configuration("hydra", toggles={"triton_rms_norm": "triton"}), "torchscript",
                  "trace")  # fmt: skip
    assert why.reason == "TorchScript records torch's operators, but not Triton kernels"
    assert why.set == {"triton_rms_norm": "follow"}


@pytest.mark.parametrize("trait", [None, Trait.COMPILED, Trait.CAPTURED])
def test_kernels_are_compared_with_what_auto_chooses_in_the_same_kind_of_step(trait, monkeypatch):
    """In a graph the host's time does not count."""
    arm = stepped(configuration("hydra", toggles={"attention": "manual"}))
    monkeypatch.setattr(type(arm.situation), "has", lambda self, *traits: trait in traits)
    captured: list[bool] = []
    monkeypatch.setattr(
        instrumented, "call", lambda variant: captured.append(measured._captured_blocks > 0)
    )
    _kernel_toggle.selecting_the_same({"attention": "auto"}, arm)
    assert captured == [trait is not None]


def test_checkpointing_took_effect_whatever_other_evidence_calls_the_model_for():
    toggles = {"checkpointing": "full", "in_place": "off"}
    arm = stepped(configuration("moe", "train", model={"n_layers": 2}, toggles=toggles))
    by_toggle = {evidence.toggle: evidence for evidence in arm.find_evidence()}
    assert "outputs are bit-identical" in by_toggle["in_place"].text
    assert by_toggle["checkpointing"].status == "effective", by_toggle["checkpointing"].text
    assert "recomputes 2 blocks of 2" in by_toggle["checkpointing"].text


def test_an_option_that_a_later_toggle_makes_possible_is_applied():
    """Shared keys exclude mixture of depths as long as recursions are on."""
    fields = {"mixture_of_recursions": True, "recursion_kv": "share"}
    toggles = {"mixture_of_recursions": "off", "mixture_of_depths": "on"}
    config = resolve(configuration("hydra", model=fields, toggles=toggles), CPU).config
    assert config.mixture_of_depths and not config.mixture_of_recursions
