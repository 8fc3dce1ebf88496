"""Compressed gradients: PowerSGD ends no process, and rounding by definition is no wrong result."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import torch
from built import stepped
from rank_checks import needs_cores
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from sessions.model import Configuration
from workbench.runner.distributed import data
from workbench.runner.numerics import comparison


def test_on_the_cpu_a_bucket_is_reduced_before_the_next_one_begins(monkeypatch):
    """Otherwise the threads of each rank mix the reductions of two buckets in another order."""
    reduced = torch.futures.Future()
    bucket = SimpleNamespace(buffer=lambda: torch.ones(4), index=lambda: 0, is_last=lambda: True)
    monkeypatch.setattr(powerSGD_hook, "powerSGD_hook", lambda state, bucket: reduced)
    threading.Timer(0.1, reduced.set_result, (torch.ones(4),)).start()
    reducer = data._Reducer("powersgd", None, None)
    assert reducer.reduce(bucket).done()
    assert reducer.reductions.sent_bytes == 16


@needs_cores
def test_the_tolerance_knows_that_gradients_are_sent_in_bf16():
    settings = {"batch": 4, "sequence": 16}
    configuration = Configuration(family="mahia", preset="tiny", settings=settings, seed=2)
    arm = stepped(configuration, steps=4, data_parallel="2", gradient_compression="bf16")
    result = comparison.check(arm, arm.situation)
    assert result.ok, result.text
