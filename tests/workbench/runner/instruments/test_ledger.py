"""The ledger is whole: what cannot be looked at is unknown, and an option that failed says so."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
import torch
from built import collect_evidence, stepped
from test_engine_toggles import IMAGES

from kernels import OPS
from kernels.core import dispatch
from models.execution.cuda_graph import CaptureError
from sessions.model import Configuration, Evidence
from workbench.runner import failed_options
from workbench.runner.profiling import instrumented
from workbench.runner.toggles import all_toggles


def raising(error: Exception):
    def evidence(option, arm):
        raise error

    return evidence


def replaced(monkeypatch, name: str, **fields) -> None:
    """Replace fields of the toggle, for all who ask for it."""
    toggles = all_toggles()
    monkeypatch.setitem(toggles, name, dataclasses.replace(toggles[name], **fields))


def test_evidence_that_fails_is_unknown_with_its_reason_and_the_rest_is_complete(
    small, monkeypatch
):
    healthy = stepped(small, precision="bf16", rope_cache="shared", checkpointing="full")
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    replaced(monkeypatch, "precision", evidence=raising(error))
    arm = stepped(small, precision="bf16", rope_cache="shared", checkpointing="full")
    ledger = collect_evidence(arm)
    reason = "the evidence could not be collected: Out of memory: 2.00 GiB more was needed."
    assert ledger.pop("precision") == ("unknown", reason)
    expected = collect_evidence(healthy)
    del expected["precision"]
    assert ledger == expected and {"checkpointing", "rope_cache"} < ledger.keys()
    assert len(collect_evidence(arm)) == 1 + len(ledger), "asked again, the ledger is shorter"


def test_a_lost_gpu_is_no_matter_of_evidence(small, monkeypatch):
    lost = RuntimeError("CUDA error: an illegal memory access was encountered")
    replaced(monkeypatch, "precision", evidence=raising(lost))
    arm = stepped(small, precision="bf16", rope_cache="shared")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="illegal memory"):
            arm.find_evidence()


# What was chosen


def test_automatic_attention_tells_its_choice_and_that_all_of_it_was_fused(small):
    arm = stepped(small, "forward")
    status, text = collect_evidence(arm)["attention"]
    assert status == "effective"
    assert text.startswith("chose sdpa_flash 2; flash ratio 1.00, 0 of 2 calls fell back to the")
    assert "; not used: " in text and "needs a CUDA GPU" in text
    assert arm.record.facts["attention_flash_ratio"] == 1.0
    assert (arm.record.facts["attention_calls"], arm.record.facts["attention_fallbacks"]) == (2, 0)


def test_automatic_attention_that_falls_back_is_amber_with_the_reason(small, monkeypatch):
    why = "sdpa_flash: as this test has it"
    monkeypatch.setattr(dispatch, "_candidates_once", lambda name, device: (("manual",), why))
    arm = stepped(small, "forward")
    status, text = collect_evidence(arm)["attention"]
    assert (status, text) == (
        "no effect",
        "chose manual 2; flash ratio 0.00, 2 of 2 calls fell back to the complete attention "
        f"matrix; not used: {why}",
    )
    assert arm.record.facts["attention_reason"] == why


def test_what_automatic_attention_preferred_is_told_as_that(small, monkeypatch):
    def prefer(able, *inputs):
        return "manual", "as this test has it"

    monkeypatch.setitem(OPS, "attention", dataclasses.replace(OPS["attention"], prefer=prefer))
    _, text = collect_evidence(stepped(small, "forward"))["attention"]
    assert text.startswith("chose manual 2;") and text.endswith("; preferred: as this test has it")


def test_torchs_choice_of_a_backend_is_told_and_a_fall_back_to_math_is_amber(small, monkeypatch):
    assert collect_evidence(stepped(small, "forward", attention="sdpa"))["attention"] == (
        "effective",
        "attention: all 2 recorded calls used sdpa; torch chose flash 2",
    )
    monkeypatch.setattr(instrumented, "_choice", lambda *args, **kwargs: "math")
    monkeypatch.setattr(instrumented, "_refusals", lambda *args, **kwargs: ["Head dim is odd"])
    status, text = collect_evidence(stepped(small, "forward", attention="sdpa"))["attention"]
    assert status == "no effect"
    assert text.endswith("torch chose math 2; it fell back to math because: Head dim is odd")


def test_without_attention_there_is_no_row_of_it():
    own = Configuration(family="own", preset="file", model={"source": str(IMAGES)})
    arm = stepped(msgspec.structs.replace(own, settings={"batch": 2}), "forward")
    assert "attention" not in collect_evidence(arm) and "attention_calls" not in arm.record.facts


# What failed


class CompilerError(RuntimeError):
    """An error such as Dynamo raises."""


CompilerError.__module__ = "torch._dynamo.exc"


class KernelError(RuntimeError):
    """An error such as Triton raises."""


KernelError.__module__ = "triton.compiler.errors"

OFF = {"compile": "off", "cuda_graphs": "off", "triton": "off", "checkpointing": "full"}
ASKED = {"compile": "default", "cuda_graphs": "on", "triton": "on", "checkpointing": "none"}


def configured(toggles: dict[str, str]) -> Configuration:
    return Configuration(family="hydra", preset="tiny", toggles=toggles)


@pytest.mark.parametrize(
    ("error", "with_before", "without"),
    [
        (CompilerError("no"), {"compile"}, {"compile"}),
        (CaptureError("no"), {"cuda_graphs"}, {"cuda_graphs"}),
        (KernelError("no"), {"triton"}, {"triton"}),
        (torch.OutOfMemoryError("no"), set(ASKED), set()),
    ],
    ids=["compile", "capture", "kernel", "memory"],
)
def test_the_options_that_an_error_names_failed_or_else_all_that_were_changed(
    error, with_before, without
):
    failed = failed_options.failed_options(error, configured(ASKED), configured(OFF))
    assert {item.toggle for item in failed} == with_before
    assert {(item.status, item.requested == ASKED[item.toggle]) for item in failed} == {
        ("failed", True)
    }
    assert {
        item.toggle for item in failed_options.failed_options(error, configured(ASKED))
    } == without


def test_an_error_that_no_change_explains_is_laid_on_what_was_changed():
    requested = msgspec.structs.replace(configured(OFF), toggles={**OFF, "checkpointing": "none"})
    (failed,) = failed_options.failed_options(CompilerError("no graph"), requested, configured(OFF))
    expected = "torch.compile failed: no graph"
    assert failed == Evidence("checkpointing", "none", "failed", expected)
