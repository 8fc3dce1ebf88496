"""Options that are applied and cannot matter turn amber, and say why."""

from __future__ import annotations

import pytest
from built_arms import configuration, evidence_of, stepped

from workbench import protocol

CASES = {
    "16-bit inputs stay as they are": (
        ("adaattn", {"adaptive_precision": False}),
        {"precision": "bf16", "adaptive_precision": "on"},
        "no head's number format changed: inputs of bfloat16 stay as they are",
    ),
    "before any analysis no head is rounded": (
        ("adaattn", {"adaptive_precision": False}),
        {"adaptive_precision": "on"},
        "its inputs after 2 calls (46 more before a change may show): none was rounded",
    ),
    "full rank": (
        ("adaattn", {"adaptive_rank": False}),
        {"adaptive_rank": "on"},
        "after 2 calls (46 more before a change may show): no rank was reduced",
    ),
    "full rank, of a model that adapts anyway": (
        ("adaattn", {}),
        {"adaptive_rank": "on"},
        "every head keeps full rank 32 of 32",
    ),
    "a least rank that no head reaches": (
        ("adaattn", {}),
        {"low_rank": "quarter"},
        "no head has a rank below 16 of 32",
    ),
    "a least rank that no head needs": (
        ("adaattn", {}),
        {"low_rank": "all"},
        "no head would compute with fewer than 32 columns without it",
    ),
    "a window longer than the sequence": (
        ("hydra", {}),
        {"window": "128"},
        "a window of 128 keys leaves out none of 32 tokens",
    ),
    "a share of one sample": (
        ("mahia", {}),
        {"dynamic_depth": "quarter"},
        "of a batch of 1 a layer takes 1",
    ),
    "one expert": (
        ("moe", {"num_experts": 1, "top_k": 1}),
        {"triton_moe_experts": "grouped"},
        "as PyTorch does here: output and work are bit-identical to the option off",
    ),
    "all experts": (
        ("moe", {"top_k": 8}),
        {"triton_moe_experts": "grouped"},
        "as PyTorch does here: output and work are bit-identical to the option off",
    ),
    "what automatic choice takes": (
        ("mahia", {}),
        {"kernel_fourier_mix": "torch"},
        "bit-identical to the option off",
    ),
    "one table of one layer": (("hydra", {"n_layers": 1}), {"rope_cache": "shared"}, "KiB"),
    "a chunk longer than the sequence": (
        ("mamba2", {}),
        {"ssd_chunk": "64"},
        "32 tokens are one chunk of 64",
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
    assert "of a short call autograd keeps" in evidence_of(arm, "checkpointing").text
    for parameter in arm.model.parameters():
        parameter.requires_grad_(False)
    evidence = evidence_of(arm, "checkpointing")
    assert evidence.status == "no effect"
    assert "autograd keeps nothing: no parameter learns" in evidence.text


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
    assert "more before a change may show): no rank was reduced" in before
    assert "3 of 4 heads compute with fewer than 32 columns: " in text("as default")
    runner.finish(protocol.Stop())
    (segment,) = runner.session.segments[-1:]
    assert before not in [e.text for e in segment.evidence]
