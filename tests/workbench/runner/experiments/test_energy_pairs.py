"""A comparison measures joules a step if there is a counter, and says why not otherwise."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from hang_limit import HANG_S
from recording_wire import RecordingWire
from test_impossible_steps import session_of

from sessions.verdicts.energy import energy_of_pairs
from workbench import protocol
from workbench.charts.plot import Run as Shown
from workbench.plots import PLOTS
from workbench.runner.config.resolve import resolve
from workbench.runner.context import RunnerContext
from workbench.runner.experiments import compare
from workbench.runner.experiments.compare import CompareRun
from workbench.runner.experiments.paired import energy_pairs, interleaving
from workbench.runner.experiments.paired.blocks import Contender, TimedBlock
from workbench.runner.instruments import energy
from workbench.runner.instruments.energy import EnergyCounter, PowerMeter

WATTS = 40.0


class Counter:
    """A counter of a device that draws a constant power; it is updated every so often."""

    why_not = ""

    def __init__(self, device: object = None, ranks: int = 1, period_s: float = 0.004) -> None:
        self._period_s = period_s

    def joules(self) -> float:
        return WATTS * self._period_s * (time.perf_counter() // self._period_s)


class Stuck(Counter):
    def joules(self) -> float:
        return 5.0


class Noted(Counter):
    """A counter that keeps the time at which it was read last."""

    read_s = 0.0

    def joules(self) -> float:
        self.read_s = time.perf_counter()
        return WATTS * self._period_s * (self.read_s // self._period_s)


def test_a_meter_reads_the_power_between_changes(monkeypatch):
    counter = Noted(period_s=0.001)
    counter.joules()
    # The meter's thread may have to wait between reading the counter and the clock.
    monkeypatch.setattr(energy, "time", SimpleNamespace(perf_counter=lambda: counter.read_s))
    with PowerMeter(counter) as meter:
        while len(meter.changes) < 40:
            time.sleep(0.01)
    assert meter.watts() == pytest.approx(WATTS, rel=0.1)
    with PowerMeter(Stuck()) as meter:
        time.sleep(0.05)
    assert meter.changes == [] and meter.watts() != meter.watts()


@pytest.fixture
def compared(small, monkeypatch):
    """Run a short comparison with a counter; return the energy and the session."""

    def compare(counter: type, **changes):
        monkeypatch.setattr(interleaving, "WARM_UP_S", 0.1)
        monkeypatch.setattr(energy_pairs, "EnergyCounter", counter)
        monkeypatch.setattr(energy_pairs, "BLOCK_S", 0.1)
        monkeypatch.setattr(energy, "LAG_S", 0.02)
        monkeypatch.setattr(energy, "POLL_S", 0.002)
        context = RunnerContext(RecordingWire(), torch.device("cpu"))
        request = {"budget_s": 3.0, "build_count": 1, "half_width": 0.9, **changes}
        CompareRun(context, protocol.Compare(base=small, other=small, **request)).execute()
        session = session_of(context)
        return energy_of_pairs(session.comparisons[0]), session

    return compare


def test_joules_are_power_times_step_time_and_the_plot_shows_the_pairs(compared, monkeypatch):
    def measure_all_pairs(context, alternation, _budget_s, shuffled):
        return energy_pairs.measure_energy(context, alternation, HANG_S, shuffled)

    monkeypatch.setattr(compare, "measure_energy", measure_all_pairs)
    measured, session = compared(Counter)
    assert len(measured.joules) >= energy_pairs.LEAST_PAIRS
    times = np.concatenate([segment.steps["wall_ms"] for segment in session.segments])
    shortest, longest = float(np.nanmin(times)), float(np.nanmax(times))
    for joules in measured.joules:
        for step_joules in joules:
            assert WATTS * shortest / 4e3 < step_joules < WATTS * longest * 4e-3
    assert measured.low < measured.ratio < measured.high
    table = PLOTS["energy"].table([Shown(session)])
    assert len(table["ratio"]) == len(measured.joules)


def test_a_void_block_has_no_energy(monkeypatch):
    """Another program that works on the device adds its energy to the counter."""
    alternation = SimpleNamespace(handle_commands=lambda: None)
    contender = Contender(0, 0, None, "A", step_ms=1.0)
    voids = ["others worked on the GPU", ""]

    def run(_context, contender, _number):
        return TimedBlock(1.0, None, voids.pop(0), contender.steps, 1.0)

    monkeypatch.setattr(energy_pairs.blocks, "run_block", run)
    monkeypatch.setattr(energy_pairs.PowerMeter, "watts", lambda _meter: WATTS * (1 + len(voids)))
    joules = energy_pairs._joules(None, alternation, Counter(), contender)
    assert joules == pytest.approx(WATTS / 1000) and not voids


def test_too_short_a_budget_is_said(compared):
    measured, session = compared(Counter, budget_s=0.3)
    assert measured.ratio is None and "are available" in measured.why_not
    assert measured.why_not in PLOTS["energy"].can_show([Shown(session)])
    measured, _ = compared(Counter, budget_s=0.3, energy=False)
    assert measured is None


def test_the_energy_of_a_step_is_that_of_all_its_gpus(monkeypatch):
    class Driver:
        NVMLError = RuntimeError
        nvmlInit = staticmethod(lambda: None)
        nvmlDeviceGetHandleByUUID = staticmethod(lambda uuid: int(uuid[4:]))
        nvmlDeviceGetTotalEnergyConsumption = staticmethod(lambda gpu: 1000 * 10**gpu)

    monkeypatch.setattr(energy, "pynvml", Driver)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda gpu: SimpleNamespace(uuid=getattr(gpu, "index", gpu)),
    )
    assert EnergyCounter(torch.device("cuda", 1)).joules() == 10
    assert EnergyCounter(torch.device("cuda", 0), ranks=3).joules() == 111


def test_each_arm_has_the_counter_of_its_own_gpus(monkeypatch, small):
    """All GPUs draw the same power; the second arm has two of them."""

    class Counted(Counter):
        def __init__(self, _device, ranks):
            super().__init__()
            self.ranks = ranks

    parallel = msgspec.structs.replace(small, toggles={**small.toggles, "data_parallel": "2"})
    arms = [resolve(small, torch.device("cpu")), resolve(parallel, torch.device("cpu"))]
    monkeypatch.setattr(energy_pairs, "EnergyCounter", Counted)
    monkeypatch.setattr(
        energy_pairs, "_joules", lambda _context, _alternation, counter, _contender: counter.ranks
    )
    contenders = [Contender(n, 0, arm, "AB"[n], step_ms=1.0) for n, arm in enumerate(arms)]
    alternation = SimpleNamespace(alone=False, contenders=contenders)
    context = SimpleNamespace(device=torch.device("cpu"), state=lambda *_: None)
    measured = energy_pairs.measure_energy(context, alternation, HANG_S, random.Random(0))
    assert measured.ratio == pytest.approx(2.0)


def test_a_cpu_without_a_counter_says_so():
    counter = EnergyCounter(torch.device("cpu"))
    assert counter.why_not or counter.joules() >= 0
