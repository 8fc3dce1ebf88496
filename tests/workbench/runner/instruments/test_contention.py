"""Other processes on the device are seen, told of once, and void the blocks of a comparison."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pynvml
import pytest
import torch
from recording_wire import RecordingWire

from sessions.model import Configuration
from workbench import protocol
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.compare import CompareRun
from workbench.runner.experiments.paired import blocks
from workbench.runner.instruments import contention
from workbench.runner.instruments.contention import Alarm, CpuOthers, GpuOthers

OTHER = 2**22 + 17  # no process has this number


@pytest.fixture
def driver(monkeypatch):
    """Return a driver that reports what a test tells it: processes, and samples of their use."""
    state = SimpleNamespace(running=[os.getpid()], samples=[], error=None, since_times=[])

    def utilization(handle, since):
        state.since_times.append(since)
        if state.error is not None:
            raise pynvml.NVMLError(state.error)
        return [SimpleNamespace(pid=p, smUtil=u, timeStamp=t) for p, u, t in state.samples]

    def running(handle):
        return [SimpleNamespace(pid=pid) for pid in state.running]

    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", running)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetProcessUtilization", utilization)
    monkeypatch.setattr(contention, "READ_S", 0.0)
    monkeypatch.setattr(contention, "COST_SHARE", 1e9)
    return state


def test_only_what_others_use_counts_and_the_busiest_is_named(driver):
    monitor = GpuOthers(None)
    driver.samples = [(os.getpid(), 90, 5), (OTHER, 30, 6), (OTHER, 20, 7), (OTHER + 1, 9, 8)]
    assert monitor.read() == 39.0
    assert monitor.who == f"process {OTHER}"
    driver.samples = [(os.getpid(), 99, 9)]
    assert monitor.read() == 0.0
    assert driver.since_times == [0, 8], "samples that were read are asked for again"


def test_a_child_of_this_process_is_no_other(driver):
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        driver.running.append(child.pid)
        driver.samples = [(child.pid, 80, 1)]
        assert GpuOthers(None).read() == 0.0
    finally:
        child.communicate()


@pytest.mark.parametrize(
    ("running", "share"), [([OTHER], 0.0), ([OTHER, OTHER + 1], None), ([], 40.0)]
)
def test_numbers_of_another_namespace_are_not_taken_for_strangers(driver, running, share):
    driver.running, driver.samples = running, [(OTHER, 40, 1)]
    assert GpuOthers(None).read() == share


@pytest.mark.parametrize(
    ("error", "share"),
    [
        (pynvml.NVML_ERROR_NOT_FOUND, 0.0),
        (pynvml.NVML_SUCCESS, 0.0),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, None),
    ],
)
def test_a_driver_without_new_samples_says_nobody_and_one_without_any_says_nothing(
    driver, error, share
):
    driver.error = error
    monitor = GpuOthers(None)
    assert monitor.read() == share
    driver.error = None
    driver.samples = [(OTHER, 40, 1)]
    assert monitor.read() == (None if share is None else 40.0)


@pytest.fixture
def at_once(monkeypatch):
    """Every reading of the CPU's counters is due."""
    monkeypatch.setattr(contention, "READ_S", 0.0)
    monkeypatch.setattr(contention, "COST_SHARE", 1e9)


def test_others_on_the_cpu_are_what_is_neither_idle_nor_ours(monkeypatch, at_once):
    own = [{1: (10.0, 0.0)}, {1: (11.0, 0.0), 2: (1.0, 0.0)}, {1: (11.0, 0.0), 2: (1.0, 0.0)}]
    counters = zip((100.0, 110.0, 120.0), (50.0, 54.0, 64.0), own, strict=True)
    monkeypatch.setattr(CpuOthers, "_counters", lambda self: next(counters))
    monitor = CpuOthers()
    assert monitor.read() == pytest.approx(40.0)
    assert monitor.read() == 0.0


def test_readings_on_a_busy_cpu_are_as_frequent_as_on_an_idle_one(monkeypatch):
    """While the model held the interpreter, the next reading was due a minute later."""
    monitor = CpuOthers()
    counters = monitor._counters()

    def wait_and_read(self):
        time.sleep(0.05)
        return counters

    monkeypatch.setattr(CpuOthers, "_counters", wait_and_read)
    monitor._due_s = began_s = time.perf_counter()
    monitor.read()
    assert monitor._due_s < began_s + 2 * contention.READ_S


def test_what_this_process_computes_is_not_counted_as_others(at_once):
    monitor = CpuOthers()
    before = monitor._last
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    monitor.read()
    total, idle = (now - then for now, then in zip(monitor._last[:2], before[:2], strict=True))
    own = contention._cpu_seconds_between(before[2], monitor._last[2])
    assert own >= 0.28 and total >= 0.28 and 0 <= idle <= total


SPIN = """
import time
print("begun", flush=True)
while time.process_time() < 0.4:
    pass
print("done", flush=True)
input()
"""
IN_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {SPIN!r}])"
# Compute nothing itself; print what its child spent, once the child has ended.
PARENT = """
import os, subprocess, sys
input()
subprocess.run([sys.executable, "-S", "-c", sys.argv[1]], start_new_session=True)
times = os.times()
print(times.children_user + times.children_system, flush=True)
input()
"""


@pytest.mark.parametrize("code", [SPIN, IN_A_CHILD], ids=["child", "grandchild"])
def test_what_a_child_computes_is_ours_while_it_lives_and_counted_once_when_it_has_ended(code):
    with subprocess.Popen(
        [sys.executable, "-S", "-c", PARENT, code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        monitor = CpuOthers(psutil.Process(parent.pid))
        readings = [monitor._counters()[2]]
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "begun\n"
        readings.append(monitor._counters()[2])
        assert parent.stdout.readline() == "done\n"
        readings.append(monitor._counters()[2])
        parent.stdin.write("\n")
        parent.stdin.flush()
        spent_s = float(parent.stdout.readline())  # 0.4 s and what starting Python takes here
        readings.append(monitor._counters()[2])
        parent.communicate("\n")
    starting, alive, ended = map(contention._cpu_seconds_between, readings, readings[1:])
    assert alive >= 0.28
    assert ended < spent_s / 2, "what it spent was counted twice"
    assert starting + alive + ended < 1.5 * spent_s, "what it spent was counted twice"


def test_a_process_of_ours_that_nobody_waited_for_takes_nothing_off_what_the_rest_spent():
    before = {1: (10.0, 1.0), 2: (300.0, 0.0)}
    assert contention._cpu_seconds_between(before, {1: (12.0, 1.0)}) == 2.0


def test_others_are_told_of_when_they_begin_and_not_again_while_they_go_on():
    alarm = Alarm()
    warnings = [
        alarm.warning(share, "python (process 7)", now_s)
        for now_s, share in (
            (0, None),
            (1, 0),
            (2, 35.4),
            (3, 60),
            (6, 6),
            (8, 0),
            (10, 50),
            (16, 9),
        )
    ]
    assert warnings[2] == "another process used the GPU: python (process 7), 35 % of it"
    assert warnings[7] == "another process used the GPU: python (process 7), 9 % of it"
    assert [index for index, text in enumerate(warnings) if text] == [2, 7]


def test_on_a_gpu_the_events_say_so(monkeypatch):
    context = RunnerContext(RecordingWire(), torch.device("cpu"))
    context.device = torch.device("cuda")
    context._sampler = SimpleNamespace(other_processes=SimpleNamespace(who="python (process 7)"))
    for share in (0.0, 40.0, 41.0):
        context._telemetry_seen({"others": share})
    (note,) = (m for m in context.wire.sent if isinstance(m, protocol.Note))
    assert (note.kind, note.text.split(":")[0]) == ("warning", "another process used the GPU")


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([], ""),
        ([{"busy": 99.0}], ""),
        ([{"others": 0.0}, {"others": 4.9}], ""),
        ([{"others": 0.0}, {"others": 12.0}], "another process used the GPU"),
    ],
)
def test_a_block_in_which_others_worked_is_void(samples, expected):
    assert blocks.contended(samples) == expected


BURN = """
import torch
x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
while True:
    for _ in range(20):
        y = x @ x
    torch.cuda.synchronize()
    print("burning", flush=True)
"""


@pytest.mark.gpu
def test_blocks_beside_another_process_on_the_gpu_are_void_and_the_verdict_says_so(runner, small):
    burning = subprocess.Popen(
        [sys.executable, "-c", BURN], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        burning.stdout.readline()
        time.sleep(2)
        runner.send(protocol.Compare(base=small, other=small, budget_s=5.0))
        assert runner.finish().reason == "done"
    finally:
        burning.kill()
        burning.communicate()
    comparison = runner.session.comparisons[-1]
    assert contention.VOID in comparison.voids
    assert any(contention.VOID in event.text for event in runner.session.events)
    assert comparison.verdict == "UNDECIDED" and comparison.facts["reasons"]


@pytest.mark.parametrize("share, is_reported", [(10.0, False), (80.0, True)])
def test_a_verdict_on_a_cpu_that_others_used_tells_of_them(share, is_reported):
    context = RunnerContext(RecordingWire(), torch.device("cpu"))
    configuration = Configuration(family="hydra", preset="tiny", workload="forward")
    run = CompareRun(context, protocol.Compare(base=configuration, other=configuration))
    run._began = time.perf_counter()
    context.samples.append((time.perf_counter_ns(), {"others": share}))
    run._judge()
    run._judge(final=True)
    facts = [m.facts for m in context.wire.sent if isinstance(m, protocol.ComparisonFacts)]
    assert facts == ([{"others": "others used 80 % of the CPU"}] if is_reported else [])
