"""PowerSGD's reductions, which torch's hook makes one after another."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import torch
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from workbench.runner.distributed import data


def test_on_the_cpu_a_bucket_is_reduced_before_the_next_one_begins(monkeypatch):
    """Otherwise the threads of each rank mix the reductions of two buckets in another order."""
    reduced = torch.futures.Future()
    bucket = SimpleNamespace(
        buffer=lambda: torch.ones(4), index=lambda: 0, is_last=lambda: True, parameters=list
    )
    monkeypatch.setattr(powerSGD_hook, "powerSGD_hook", lambda state, bucket: reduced)
    threading.Timer(0.1, reduced.set_result, (torch.ones(4),)).start()
    reducer = data._Reducer("powersgd", None)
    assert reducer.reduce(bucket).done()
    assert reducer.reductions.sent_bytes == 16
