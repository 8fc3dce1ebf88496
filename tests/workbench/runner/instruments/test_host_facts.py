"""Facts of the host, which need no torch."""

from __future__ import annotations

import os

from kernels import hardware
from workbench.runner.instruments import host_facts


def test_the_kernel_library_and_the_host_count_the_same_cores(monkeypatch):
    """Neither may import the other: the host's facts are read where torch must not load."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 5}, raising=False)
    assert host_facts.usable_cores() == hardware.usable_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert host_facts.usable_cores() == hardware.usable_cores() == 1
