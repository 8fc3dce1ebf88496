"""Clocks come from a thread of their own while the run's restarts them: nothing may die of that."""

from __future__ import annotations

import random
import statistics
import threading

import pytest
from hang_limit import HANG_S
from recording_wire import RecordingWire

from sessions.model import Phase
from workbench import protocol
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.instruments.samplers import HostSampler
from workbench.runner.instruments.telemetry import Telemetry


def test_a_segment_that_begins_while_a_clock_is_judged_takes_nothing_from_under_it(monkeypatch):
    tracker = PhaseTracker(lambda phase: None)
    mean = statistics.fmean

    def while_a_segment_begins(values):
        tracker.restart()
        return mean(values)

    monkeypatch.setattr(statistics, "fmean", while_a_segment_begins)
    tracker.clock_mhz(1980.0)
    tracker.clock_mhz(1980.0)
    assert tracker.phase is Phase.WARM_UP


def steady_share(clocks):
    """Return the steady share of steps of 210 ms, with a clock read every 50 ms."""
    tracker, steady = PhaseTracker(lambda phase: None), 0
    for number, clock in enumerate(clocks):
        tracker.clock_mhz(clock)
        if number % 4 == 0:
            steady += tracker.step_phase(number * 50_000_000) is Phase.STEADY
    return steady / (len(clocks) / 4)


def test_steps_are_steady_while_a_power_limit_lets_the_clock_jump():
    jumping = [1785.0, 1965.0] * 100
    assert steady_share(jumping) > 0.9
    random.Random(0).shuffle(jumping)
    assert steady_share(jumping) > 0.8


def test_no_step_is_steady_while_the_clock_sinks():
    assert steady_share([1980.0 * 0.995**n for n in range(200)]) < 0.05


@pytest.mark.parametrize(
    ("lane", "missing"), [("fast", "clocks, utilization"), ("slow", "energy and PCIe")]
)
def test_a_lane_of_telemetry_that_dies_is_told_of(lane, missing, monkeypatch):
    monkeypatch.setattr("workbench.runner.instruments.telemetry.SLOW_PERIOD_S", 0.01)
    sampler = HostSampler()

    def broken():
        raise ValueError("no such sensor")

    monkeypatch.setattr(sampler, lane, broken)
    notes, arrived = [], threading.Event()

    class Wire(RecordingWire):
        def send(self, message):
            if isinstance(message, protocol.Note):
                notes.append(message)
                arrived.set()

    telemetry = Telemetry(Wire(), sampler, lambda sample: None)
    telemetry.start()
    assert arrived.wait(HANG_S)
    telemetry.stop()
    (note,) = notes
    assert note.kind == "warning" and note.text.startswith(missing)
    assert note.text.endswith("no longer recorded: ValueError: no such sensor")
