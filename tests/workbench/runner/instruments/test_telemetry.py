"""Telemetry: what is sampled how often, what is lost and comes back, and what is told of it."""

from __future__ import annotations

import itertools
import types

import pynvml
import pytest
import torch
from recording_wire import RecordingWire

from sessions.model import ABSENT, SAMPLING
from sessions.sampling import absent, sampling
from workbench import protocol
from workbench.client.recorder import Recorder
from workbench.runner.environment import environment
from workbench.runner.instruments import samplers
from workbench.runner.instruments.samplers import ACTIVITY, HostSampler
from workbench.runner.instruments.telemetry import Telemetry

LOST = pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)


def test_a_reading_that_fails_says_why_and_is_tried_again(monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr(samplers.time, "monotonic", lambda: now_s[0])
    answers = [7.0, LOST, 9.0]

    def call() -> float:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    readings = samplers._Readings({"busy": call})
    assert readings.read() == {"busy": 7.0} and not readings.why_not
    assert readings.read() == {} and readings.why_not == {"busy": f"NVML: {LOST}"}
    now_s[0] += samplers.RETRY_S / 2
    assert readings.read() == {} and len(answers) == 1, "not at every sample"
    now_s[0] += samplers.RETRY_S
    assert readings.read() == {"busy": 9.0} and not readings.why_not


def test_the_first_sample_is_of_a_whole_interval_of_the_thread_that_reads():
    readings, seen = itertools.count(), []

    class Counting(HostSampler):
        def fast(self):
            return {"busy": float(next(readings))}

    def take(sample):
        seen.append(sample["busy"])
        sampled.stop()

    sampled = Telemetry(RecordingWire(), Counting(), take)
    sampled._fast_lane()
    assert seen == [1.0], "the first reading only begins the interval"


def test_what_is_lost_and_comes_back_is_told_once_and_kept_in_the_session():
    wire = RecordingWire()
    sampler = HostSampler()
    sampled = Telemetry(wire, sampler, lambda sample: None)
    there = {"busy": "every 0.05 s"}
    for how in (there, there, {"busy": f"{ABSENT}NVML: Unknown Error"}, there):
        sampled._send_sampling(how)
    notes = [(m.kind, m.text) for m in wire.sent if isinstance(m, protocol.Note)]
    assert notes == [
        ("warning", "telemetry: busy is no longer measured (NVML: Unknown Error)"),
        ("info", "telemetry: busy is measured again"),
    ]
    recorder = Recorder()
    for message in wire.sent[:3]:
        recorder.record(message)
    assert recorder.session.environment[f"{SAMPLING}busy"] == f"{ABSENT}NVML: Unknown Error"


def test_the_host_says_that_it_has_no_counters_of_a_gpu_and_why():
    assert all(HostSampler().how()[name].startswith(ABSENT) for name in ACTIVITY)
    assert HostSampler("NVML: Driver Not Loaded").how()["dram_active"] == (
        f"{ABSENT}NVML: Driver Not Loaded"
    )


def no_frequency():
    return None


def stopped():
    return types.SimpleNamespace(current=0.0)


def refused():
    raise OSError("permission denied")


def not_there():
    raise NotImplementedError


@pytest.mark.parametrize(
    ("cpu_freq", "reason"),
    [
        (no_frequency, "this CPU reports no clock to psutil, like many virtual machines"),
        (stopped, "this CPU reports no clock to psutil, like many virtual machines"),
        (refused, "psutil cannot read the CPU's clock: permission denied"),
        (not_there, "psutil cannot read the CPU's clock: NotImplementedError"),
        (None, "psutil cannot read a CPU's clock on this platform"),
    ],
)
def test_a_cpu_whose_clock_nobody_knows_has_no_clock_in_its_samples_and_says_why(
    monkeypatch, cpu_freq, reason
):
    if cpu_freq is None:
        monkeypatch.delattr(samplers.psutil, "cpu_freq", raising=False)
    else:
        monkeypatch.setattr(samplers.psutil, "cpu_freq", cpu_freq, raising=False)
    sampler = HostSampler()
    assert "sm_clock" not in sampler.fast()
    assert sampler.how()["sm_clock"] == f"{ABSENT}{reason}"
    facts = environment(torch.device("cpu"))
    assert f"no clock: {reason}" in absent(facts)
    assert f"{SAMPLING}sm_clock" in facts and sampling(facts, "sm_clock") == ""


def test_a_cpu_whose_clock_is_known_has_it_in_its_samples_and_says_how_often(monkeypatch):
    known = types.SimpleNamespace(current=2596.1)
    monkeypatch.setattr(samplers.psutil, "cpu_freq", lambda: known, raising=False)
    sampler = HostSampler()
    assert sampler.fast()["sm_clock"] == 2596.1
    assert sampler.how()["sm_clock"] == samplers.OFTEN
    assert sampling(environment(torch.device("cpu")), "sm_clock") == samplers.OFTEN
