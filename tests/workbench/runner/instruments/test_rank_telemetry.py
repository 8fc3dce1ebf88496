"""The devices of the other ranks: each is sampled while its rank is there, told, kept and shown."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pynvml
import pytest
import torch
from hang_limit import HANG_S
from recording_wire import RecordingWire

from sessions.storage import hdf5
from workbench import protocol
from workbench.client.recorder import Recorder
from workbench.runner.context import RunnerContext
from workbench.runner.distributed import world
from workbench.runner.instruments import contention
from workbench.runner.instruments.rank_telemetry import RankTelemetry

GIB = 2**30
OTHER = 2**22 + 17  # no process has this number


@pytest.fixture
def driver(monkeypatch):
    """Return a driver with four GPUs, each with its own number; GPU 2 has no power reading."""
    state = SimpleNamespace(other_shares={})

    def power(handle):
        if handle == 2:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 1000 * (100 + handle)

    answers = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: int(uuid.decode().removeprefix("GPU-")),
        "nvmlGpmQueryDeviceSupport": lambda handle: SimpleNamespace(isSupportedDevice=False),
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=10 * handle),
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=(handle + 1) * GIB),
        "nvmlDeviceGetPowerUsage": power,
        "nvmlDeviceGetClockInfo": lambda handle, kind: 1500 + handle,
        "nvmlDeviceGetTemperature": lambda handle, kind: 40 + handle,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 0,
        "nvmlDeviceGetTotalEnergyConsumption": lambda handle: 5000,
        "nvmlDeviceGetPcieThroughput": lambda handle, kind: 3000,
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [SimpleNamespace(pid=os.getpid())],
        "nvmlDeviceGetProcessUtilization": lambda handle, since: [
            SimpleNamespace(pid=OTHER, smUtil=share, timeStamp=since + 1)
            for share in state.other_shares.get(handle, [])
        ],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    properties = {"get_device_properties": lambda index: SimpleNamespace(uuid=index)}
    for name, answer in properties.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(contention, "READ_S", 0.0)
    monkeypatch.setattr(contention, "COST_SHARE", 1e9)
    return state


@pytest.fixture
def ranks(monkeypatch):
    """Return a function that sets how many ranks there are; no process is started for them."""
    there = SimpleNamespace(group=None)
    monkeypatch.setattr(world, "current", lambda: there.group)

    def begin(size: int) -> None:
        pids = dict.fromkeys(range(1, size), os.getpid())
        there.group = SimpleNamespace(pids=pids) if size > 1 else None

    return begin


def sampled(wire: RecordingWire) -> set[str]:
    return {
        message.device for message in wire.sent if isinstance(message, protocol.TelemetrySamples)
    }


def until(condition, limit_s: float = HANG_S) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come"
        time.sleep(0.01)


def test_every_gpu_of_the_ranks_is_sampled_and_kept_in_the_file_under_its_own_name(
    driver, ranks, tmp_path
):
    wire = RecordingWire()
    devices = RankTelemetry(wire, torch.device("cuda", 0), lambda: world.current())
    devices.update()
    time.sleep(0.15)
    assert not wire.sent, "one rank has no other"
    ranks(4)
    devices.update()
    until(lambda: sampled(wire) == {"gpu1", "gpu2", "gpu3"})
    devices.stop()
    assert not [message for message in wire.sent if isinstance(message, protocol.Sampling)], (
        "the first tells"
    )
    recorder = Recorder()
    for message in wire.sent:
        recorder.record(message)
    path = tmp_path / "ranks.h5"
    hdf5.save(recorder.session, path)
    telemetry = hdf5.load(path).telemetry
    for number in (1, 2, 3):
        columns = telemetry[f"gpu{number}"]
        assert set(columns["busy"]) == {10.0 * number}
        assert set(columns["memory_used"]) == {(number + 1.0) * GIB}
        assert set(columns["sm_clock"]) == {1500.0 + number}
    assert set(telemetry["gpu1"]["power_w"]) == {101.0}
    assert not (telemetry["gpu2"]["power_w"] > 0).any(), "that one cannot tell it"


def test_sampling_ends_with_the_ranks_and_begins_anew_with_others(driver, ranks):
    wire = RecordingWire()
    devices = RankTelemetry(wire, torch.device("cuda", 0), lambda: world.current())
    ranks(2)
    devices.update()
    until(lambda: sampled(wire) == {"gpu1"})
    threads = [thread for telemetry in devices._running for thread in telemetry._threads]
    ranks(1)
    devices.update()
    until(lambda: not any(thread.is_alive() for thread in threads))
    count = len(wire.sent)
    time.sleep(0.15)
    assert len(wire.sent) == count, "nobody uses it any more"
    ranks(2)
    devices.update()
    until(lambda: len(wire.sent) > count)
    devices.stop()


def test_a_device_that_the_driver_does_not_find_is_told_and_the_others_are_sampled(
    driver, ranks, monkeypatch
):
    def handle(uuid):
        if uuid == b"GPU-1":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return int(uuid.decode().removeprefix("GPU-"))

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", handle)
    wire = RecordingWire()
    devices = RankTelemetry(wire, torch.device("cuda", 0), lambda: world.current())
    ranks(3)
    devices.update()
    until(lambda: sampled(wire) == {"gpu2"})
    devices.stop()
    (note,) = [message for message in wire.sent if isinstance(message, protocol.Note)]
    assert note.text.startswith("the device of rank 1 is not sampled: ")


def test_what_others_use_of_a_ranks_gpu_counts_as_if_they_used_the_runners_own(driver, ranks):
    wire = RecordingWire()
    context = RunnerContext(wire, torch.device("cpu"))
    context._rank_telemetry = RankTelemetry(wire, torch.device("cuda", 0), lambda: world.current())
    ranks(2)
    driver.other_shares = {1: [60]}
    context.set_variant(None)
    until(lambda: context._rank_telemetry.busiest_others() == (60.0, f"process {OTHER}"))
    began_ns = time.perf_counter_ns()
    context._telemetry_seen({"others": 1.0})
    assert context.others_percent(began_ns, time.perf_counter_ns()) == 60.0
    context._rank_telemetry.stop()
    began_ns = time.perf_counter_ns()
    context._telemetry_seen({"others": 1.0})
    assert context.others_percent(began_ns, time.perf_counter_ns()) == 1.0
