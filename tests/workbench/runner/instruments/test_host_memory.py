"""Peaks of the resident set: what a step takes and gives back before anybody looks counts too."""

from __future__ import annotations

import time

import pytest
import torch

from workbench.runner.instruments import memory
from workbench.runner.instruments.memory import HostMemory

BYTES = 1 << 28


def take_and_give_back() -> None:
    torch.ones(BYTES // 4).sum()


@pytest.fixture
def host() -> HostMemory:
    made = HostMemory()
    made.new_phase()
    return made


def test_what_a_step_gives_back_before_the_sample_is_in_its_peak(host):
    before = host.sample()
    take_and_give_back()
    after = host.sample()
    assert after.peak > before.peak + 0.9 * BYTES
    assert after.allocated < before.allocated + 0.1 * BYTES


def test_a_new_phase_begins_at_what_is_resident_and_leaves_the_steps_before_theirs(host):
    took_ns = time.perf_counter_ns()
    take_and_give_back()
    highest = host.sample().peak
    host.new_phase()
    now = host.sample()
    assert now.peak_of(time.perf_counter_ns()) < highest - 0.9 * BYTES
    assert now.peak_of(took_ns) == highest


def test_steps_of_a_phase_that_is_over_held_no_more_than_its_peak(host):
    took_ns = time.perf_counter_ns()
    highest = host.sample().peak
    host.new_phase()
    block = torch.ones(BYTES // 4)
    now = host.sample()
    del block
    assert now.allocated > highest + 0.9 * BYTES
    assert now.allocated_of(took_ns) <= now.peak_of(took_ns) < now.allocated
    assert now.allocated_of(time.perf_counter_ns()) == now.allocated


def test_where_the_kernel_does_not_count_the_samples_do(monkeypatch):
    monkeypatch.setattr(memory, "_forget_highest_resident", lambda: False)
    host = HostMemory()
    host.new_phase()
    take_and_give_back()
    first = host.sample()
    assert first.peak == first.allocated, "not the peak of a build long ago"
    block = torch.ones(BYTES // 4)
    assert host.sample().peak > first.peak + 0.9 * BYTES
    del block
    assert host.sample().peak > first.peak + 0.9 * BYTES
