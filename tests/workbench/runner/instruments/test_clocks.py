"""A clock that jumps at a power limit has not moved; one that went elsewhere has."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.measure import sm_clock
from workbench.runner.instruments.clocks import ClockMeter, moved

AT_THE_LIMIT = [1785.0, 1965.0, 1965.0, 1785.0] * 5


@given(st.just(0.0) | st.floats(200, 3000), st.integers(0, 60))
def test_a_clock_that_stays_has_not_moved(clock, readings):
    assert not moved([clock] * readings, 0.0001)


def test_jumps_between_readings_are_no_movement():
    assert not moved(AT_THE_LIMIT, 0.02)
    assert not moved([1785.0, 1965.0], 0.02), "two readings do not show how far they jump"


@given(st.floats(0.5, 0.93), st.integers(8, 40))
def test_a_clock_that_went_down_and_stayed_has_moved(share, readings):
    assert moved([1980.0] * readings + [1980.0 * share] * readings, 0.05)


@pytest.mark.parametrize("share", [0.8, 1.25])
def test_movement_is_seen_under_the_jumps(share):
    assert moved(AT_THE_LIMIT + [share * clock for clock in AT_THE_LIMIT], 0.05)


def test_a_clock_that_wakes_has_moved():
    assert moved([345.0, 1980.0], 0.02)
    assert moved([0.0, 1980.0], 0.02)


def reading(cycles, ns, order=(0, 1, 2)):
    return torch.tensor([[number, cycles + 17 * number, ns] for number in order])


def test_the_mean_clock_is_cycles_by_time_whatever_order_programs_ran_in():
    first, last = reading(10**12, 10**9), reading(10**12 + 18 * 10**8, 2 * 10**9, (2, 0, 1))
    assert sm_clock.mean_mhz(first, last) == pytest.approx(1800)


def test_one_multiprocessor_that_was_not_read_twice_is_left_out():
    first, last = reading(0, 0, (0, 1)), reading(15 * 10**5, 10**6, (1, 7))
    assert sm_clock.mean_mhz(first, last) == pytest.approx(1500)
    assert sm_clock.mean_mhz(first, reading(1, 1, (7,))) is None


def test_a_clock_that_cannot_be_counted_is_told_of_once(monkeypatch):
    sentences = []
    meter = ClockMeter(torch.device("cpu"), sentences.append)
    assert meter.mark() is None and not sentences, "there is none to count"

    def broken(device):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(sm_clock, "read", broken)
    assert meter.mark() is None and meter.mark() is None
    assert sentences == ["cycles cannot be counted: no compiler"]
    assert meter.mean_mhz(None, None) is None
