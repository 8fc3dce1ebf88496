"""The ledger is whole: what cannot be looked at is unknown, and an option that failed says so."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
import torch
from built import found, stepped

from models._cuda_graph import CaptureError
from sessions.model import Configuration, Evidence
from workbench.runner import blame
from workbench.runner.toggles import all_toggles


def raising(error: Exception):
    def evidence(option, arm):
        raise error

    return evidence


def replaced(monkeypatch, name: str, **fields) -> None:
    """The toggle with other fields, for all who ask for it."""
    toggles = all_toggles()
    monkeypatch.setitem(toggles, name, dataclasses.replace(toggles[name], **fields))


def test_evidence_that_fails_is_unknown_with_its_reason_and_the_rest_is_complete(
    small, monkeypatch
):
    whole = stepped(small, precision="bf16", rope_cache="shared", checkpointing="full")
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    replaced(monkeypatch, "precision", evidence=raising(error))
    arm = stepped(small, precision="bf16", rope_cache="shared", checkpointing="full")
    ledger = found(arm)
    reason = "looking for the evidence failed: Out of memory: 2.00 GiB more was needed."
    assert ledger.pop("precision") == ("unknown", reason)
    expected = found(whole)
    del expected["precision"]
    assert ledger == expected and len(ledger) == 2
    assert len(found(arm)) == 3, "asked again, the ledger is shorter"


def test_a_lost_gpu_is_no_matter_of_evidence(small, monkeypatch):
    lost = RuntimeError("CUDA error: an illegal memory access was encountered")
    replaced(monkeypatch, "precision", evidence=raising(lost))
    arm = stepped(small, precision="bf16", rope_cache="shared")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="illegal memory"):
            arm.find_evidence()


# What failed


class CompilerError(RuntimeError):
    """As Dynamo raises them."""


CompilerError.__module__ = "torch._dynamo.exc"


class KernelError(RuntimeError):
    """As Triton raises them."""


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
    found = blame.failed_options(error, configured(ASKED), configured(OFF))
    assert {one.toggle for one in found} == with_before
    assert {(one.status, one.requested == ASKED[one.toggle]) for one in found} == {("failed", True)}
    assert {one.toggle for one in blame.failed_options(error, configured(ASKED))} == without


def test_an_error_that_no_change_explains_is_laid_on_what_was_changed():
    asked = msgspec.structs.replace(configured(OFF), toggles={**OFF, "checkpointing": "none"})
    (found,) = blame.failed_options(CompilerError("no graph"), asked, configured(OFF))
    expected = "torch.compile failed: no graph"
    assert found == Evidence("checkpointing", "none", "failed", expected)
