"""A captured step: what runs before its capture is what the graph runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from built import stepped

import kernels
from kernels.core import measured
from kernels.core.implementation_timing import Cost, Measurement
from workbench.runner.toggles.cuda_graphs import _CapturedStep


def test_an_uncaptured_step_chooses_kernels_like_the_captured_one():
    seen = []

    def step():
        seen.append(measured.is_captured(SimpleNamespace(is_cuda=True)))
        return torch.zeros(())

    _CapturedStep(step, SimpleNamespace(phases=None)).uncaptured()
    assert seen == [True] and measured._captured_blocks == 0


@pytest.mark.gpu
def test_what_is_known_from_before_is_captured_in_a_process_that_never_ran_it(small, monkeypatch):
    """Libraries plan and allocate in their first call, which must not be in the capture."""
    costs = {"sdpa_flash": Cost(20.0, 20.0), "sdpa_cudnn": Cost(10.0, 90.0)}
    known = Measurement(tuple(costs), costs)
    monkeypatch.setattr(
        measured, "_lookup", lambda gpu, name, _: known if name == "attention" else None
    )
    monkeypatch.setattr(measured, "_has_new", lambda *_: False)
    toggles = {"cuda_graphs": "on", "adamw": "fused", "precision": "amp_bf16"}
    with kernels.measuring(True):
        kernels.reset_usage()
        arm = stepped(small, device="cuda", steps=2, **toggles)
    assert arm.step.replays
    assert set(kernels.usage()["attention"]) == {"sdpa_cudnn"}
