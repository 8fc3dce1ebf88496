"""Clocks come from a thread of their own while the run's restarts them: nothing may die of that."""

from __future__ import annotations

import statistics
import threading

import pytest
from recording_wire import RecordingWire

from sessions.model import Phase
from workbench import protocol
from workbench.runner.phases import PhaseTracker
from workbench.runner.telemetry import HostSampler, Telemetry


def test_a_segment_that_begins_while_a_clock_is_judged_takes_nothing_from_under_it(monkeypatch):
    tracker = PhaseTracker(lambda phase: None)
    median = statistics.median

    def while_a_segment_begins(values):
        tracker.restart()
        return median(values)

    monkeypatch.setattr(statistics, "median", while_a_segment_begins)
    tracker.clock_mhz(1980.0)
    assert tracker.phase is Phase.WARM_UP


@pytest.mark.parametrize(
    ("lane", "missing"), [("fast", "clocks, utilization"), ("slow", "energy and PCIe")]
)
def test_a_lane_of_telemetry_that_dies_is_told_of(lane, missing, monkeypatch):
    monkeypatch.setattr("workbench.runner.telemetry.SLOW_PERIOD_S", 0.01)
    sampler = HostSampler()

    def broken():
        raise ValueError("no such sensor")

    monkeypatch.setattr(sampler, lane, broken)
    told, arrived = [], threading.Event()

    class Wire(RecordingWire):
        def send(self, message):
            if isinstance(message, protocol.Note):
                told.append(message)
                arrived.set()

    telemetry = Telemetry(Wire(), sampler, lambda sample: None)
    telemetry.start()
    assert arrived.wait(30)
    telemetry.stop()
    (note,) = told
    assert note.kind == "warning" and note.text.startswith(missing)
    assert note.text.endswith("not recorded any more: ValueError: no such sensor")
