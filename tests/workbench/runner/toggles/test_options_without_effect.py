"""Options that are applied and cannot matter turn amber, and say why."""

from __future__ import annotations

import pytest
from built_arms import configuration, evidence_of, stepped

from workbench import protocol

CASES = {
    "16-bit inputs stay as they are": (
        ("adaattn", {"adaptive_precision": False}),
        {"precision": "bf16", "adaptive_precision": "on"},
        "no head's number format changed: bfloat16 inputs are rounded only if the model allows FP8",
    ),
    "before any analysis no head is rounded": (
        ("adaattn", {"adaptive_precision": False}),
        {"adaptive_precision": "on"},
        "its inputs after 2 calls (a change can take 46 more): none was rounded",
    ),
    "full rank": (
        ("adaattn", {"adaptive_rank": False}),
        {"adaptive_rank": "on"},
        "after 2 calls (a change can take 46 more): no rank was reduced",
    ),
    "full rank, of a model that adapts anyway": (
        ("adaattn", {}),
        {"adaptive_rank": "on"},
        "every head keeps its full rank of 32",
    ),
    "a least rank that no head reaches": (
        ("adaattn", {}),
        {"low_rank": "quarter"},
        "no head has a rank below 16 of 32",
    ),
    "a least rank that no head needs": (
        ("adaattn", {}),
        {"low_rank": "all"},
        "without this option no head would compute with fewer than 32 columns",
    ),
    "a window longer than the sequence": (
        ("hydra", {}),
        {"window": "128"},
        "the window covers the complete sequence of 32 tokens",
    ),
    "a share of one sample": (
        ("mahia", {}),
        {"dynamic_depth": "quarter"},
        "a layer computes 1 of 1 sample, the same as with ",
    ),
    "one expert": (
        ("moe", {"num_experts": 1, "top_k": 1}),
        {"triton_moe_experts": "grouped"},
        "the same as PyTorch here: outputs and operators are identical with the option off",
    ),
    "all experts": (
        ("moe", {"top_k": 8}),
        {"triton_moe_experts": "grouped"},
        "the same as PyTorch here: outputs and operators are identical with the option off",
    ),
    "what automatic choice takes": (
        ("mahia", {}),
        {"kernel_fourier_mix": "torch"},
        "outputs and operators are identical with the option off",
    ),
    "one table of one layer": (("hydra", {"n_layers": 1}), {"rope_cache": "shared"}, "KiB"),
    "a chunk longer than the sequence": (
        ("mamba2", {}),
        {"ssd_chunk": "64"},
        "one chunk holds 32 tokens anyway",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_option_that_cannot_matter_is_no_effect(case):
    (family, fields), toggles, text = CASES[case]
    arm = stepped(configuration(family, sequence=32, model=fields, toggles=toggles))
    evidence = evidence_of(arm, list(toggles)[-1])
    assert evidence.status == "no effect", evidence.text
    assert text in evidence.text


def test_checkpointing_without_gradients_is_no_effect():
    arm = stepped(configuration("hydra", "train", toggles={"checkpointing": "full"}))
    assert "for a short call autograd saves" in evidence_of(arm, "checkpointing").text
    for parameter in arm.model.parameters():
        parameter.requires_grad_(False)
    evidence = evidence_of(arm, "checkpointing")
    assert evidence.status == "no effect"
    assert "autograd saves nothing: no parameter is trained" in evidence.text


def test_a_comparison_leaves_the_arm_as_it_was():
    arm = stepped(configuration("adaattn", sequence=32, toggles={"adaptive_rank": "off"}))
    before = {name: x.clone() for name, x in arm.model.named_buffers()}
    assert evidence_of(arm, "adaptive_rank").status == "effective"
    for name, x in arm.model.named_buffers():
        assert x.equal(before[name]), name


def test_heads_that_are_narrow_show_the_ranks_in_use():
    fields = {"adaptive_rank": False, "qk_dimensions": 8, "refresh_every": 1}
    arm = stepped(configuration("adaattn", sequence=32, model=fields,
                                toggles={"adaptive_rank": "on"}))  # fmt: skip
    for _ in range(4):
        with arm.entered():
            arm.step()
    evidence = evidence_of(arm, "adaptive_rank")
    assert evidence.status == "effective"
    assert "of 16 heads compute with fewer than 32 columns: " in evidence.text
    assert "heads of rank 16" in evidence.text


def test_an_adaptive_option_is_amber_until_a_rank_has_changed(runner):
    fields = {"n_layers": 1, "qk_dimensions": 8, "refresh_every": 1000}
    toggles = {"adaptive_rank": "on", "adaptive_precision": "off"}
    runner.start(configuration("adaattn", model=fields, toggles=toggles))

    def text(status: str) -> str:
        def is_shown(message):
            return isinstance(message, protocol.EvidenceFound) and any(
                (e.toggle, e.status == "no effect") == ("adaptive_rank", status == "no effect")
                for e in message.evidence
            )

        shown = runner.until(is_shown).evidence
        return next(e.text for e in shown if e.toggle == "adaptive_rank")

    before = text("no effect")
    assert "more): no rank was reduced" in before
    assert "3 of 4 heads compute with fewer than 32 columns: " in text("as default")
    runner.finish(protocol.Stop())
    (segment,) = runner.session.segments[-1:]
    assert before not in [e.text for e in segment.evidence]
