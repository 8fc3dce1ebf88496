"""The ledger is whole: what cannot be looked at is unknown, and an option that failed says so."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from built import found, stepped

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
