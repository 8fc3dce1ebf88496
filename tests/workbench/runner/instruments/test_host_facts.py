"""Facts of the host, which need no torch."""

from __future__ import annotations

import os

import torch

from kernels import hardware
from workbench.runner import environment
from workbench.runner.instruments import host_facts


def test_cores_are_those_of_the_process_or_all_or_at_least_one(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 5}, raising=False)
    assert host_facts.usable_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert host_facts.usable_cores() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert host_facts.usable_cores() == 1


def test_the_environment_names_the_cpu_as_the_host_facts_do():
    facts = environment.environment(torch.device("cpu"))
    assert facts["device"] == facts["cpu"] == host_facts.cpu_name() != hardware.of("cpu").name
