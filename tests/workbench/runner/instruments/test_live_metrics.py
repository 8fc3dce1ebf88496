"""Measurements of a model arrive while it runs, are the truth, and make no step wait."""

from __future__ import annotations

import statistics
import time

import numpy as np
import pytest
import torch
from measuring_family import FAMILY
from runner_driver import Driver

import models
from sessions.model import Configuration
from workbench import protocol
from workbench.runner.instruments import metrics
from workbench.runner.instruments.metrics import MetricReader


def measuring(**changes) -> Configuration:
    return Configuration(family="measuring", preset="tiny", workload="forward", **changes)


def test_metrics_come_a_few_times_a_second_and_are_what_the_model_measured(with_families: Driver):
    driver = with_families
    since = len(driver.messages)
    driver.start(measuring(), seconds=1.5)
    assert driver.finish().reason == "done", driver.describe()
    readings = [m for m in driver.messages[since:] if isinstance(m, protocol.Metrics)]
    assert 2 <= len(readings) <= 9  # fewer where the machine is slow, never more

    segment = driver.session.segments[-1]
    mean, calls = segment.metrics["mean"], segment.metrics["calls"]
    assert (mean.title, mean.row, mean.column) == ("Mean input", "linear", "feature")
    assert (mean.shape, calls.shape, calls.unit) == ((2, 8), (1, 1), "calls")
    assert (np.abs(mean.table["values"][:, 0, 1:] - np.arange(1, 8)) < 0.05).all()
    counted = calls.table["values"][:, 0, 0]
    steps = segment.steps
    assert (np.diff(counted) > 0).all()
    # The probe is one call more, of a model that has not stepped yet.
    assert counted[-1] == len(steps["t_s"]) + 1, "the last reading is not the segment's end"
    for t_s, count in zip(calls.table["t_s"][:-1], counted[:-1], strict=True):
        assert abs(np.searchsorted(steps["t_s"], t_s) + 1 - count) <= 1


def test_every_segment_has_metrics_of_its_own_however_short(with_families: Driver):
    driver = with_families
    first = len(driver.session.segments)
    driver.start(measuring(), steps=1)
    driver.finish()
    driver.start(measuring(model={"n_layers": 3}))
    driver.until_steps(2)
    driver.send(protocol.Apply(toggles={"precision": "bf16"}))
    driver.until(protocol.SegmentStarted)
    driver.until_steps(2)
    driver.finish(protocol.Stop())
    shapes = [segment.metrics["mean"].shape for segment in driver.session.segments[first:]]
    assert shapes == [(2, 8), (3, 8), (3, 8)]
    for segment in driver.session.segments[first:]:
        assert (segment.metrics["mean"].table["t_s"] >= segment.start_s).all()


@pytest.mark.slow
def test_the_session_has_every_metric_that_the_families_name(with_families: Driver):
    driver, routed = with_families, {"mixture_of_depths": True, "mixture_of_recursions": True}
    fields = {"hydra": routed, "mahia": {"use_moe": True}}
    for name, family in models.FAMILIES.items():
        more = fields.get(name, {})
        settings = {"batch": 1, "sequence": min(16, family.longest(family.presets["tiny"]))}
        driver.start(
            Configuration(
                family=name, preset="tiny", workload="train", model=more, settings=settings
            ),
            steps=1,
        )
        assert driver.finish().reason == "done", driver.describe()
        recorded = driver.session.segments[-1].metrics
        assert recorded.keys() == {metric.name for metric in family.metrics}
        model = family.build(family.configure("tiny", more))
        for metric, values in model.metrics().items():
            assert recorded[metric].shape == values.shape
            assert np.isfinite(recorded[metric].table["values"]).all()


def test_a_family_that_measures_nothing_sends_nothing(with_families: Driver):
    driver = with_families
    since = len(driver.messages)
    driver.start(Configuration(family="faulty", preset="tiny"), steps=30)
    driver.finish()
    assert not [m for m in driver.messages[since:] if isinstance(m, protocol.Metrics)]
    assert driver.session.segments[-1].metrics == {}


def test_the_catalogue_describes_what_a_family_measures(with_families: Driver):
    (family,) = (f for f in with_families.messages[0].families if f.name == "measuring")
    assert [metric.name for metric in family.metrics] == [metric.name for metric in FAMILY.metrics]
    assert all(metric.title and metric.help.endswith(".") for metric in family.metrics)


class FakeWire:
    def __init__(self):
        self.sent = []

    def seconds(self):
        return time.perf_counter()

    def send(self, message):
        self.sent.append(message)


def model(device="cpu"):
    return FAMILY.materialise(FAMILY.presets["tiny"], device)


def test_asking_when_nothing_is_due_costs_a_step_almost_nothing():
    reader = MetricReader(FakeWire(), 0, model())
    reader.poll(1)
    took_us = []
    for _ in range(9):
        began = time.thread_time_ns()  # other processes do not count
        for _ in range(100):
            reader.poll(1)
        took_us.append((time.thread_time_ns() - began) / 1e5)
    print(f"asking when nothing is due: {statistics.median(took_us):.2f} us")
    assert statistics.median(took_us) < 20  # 0.3 us on an idle machine, asked 30 times a second
    assert len(reader._wire.sent) == 1


def test_the_end_is_not_read_twice_where_no_step_ran_since_the_last_reading():
    reader = MetricReader(FakeWire(), 0, model())
    reader.poll(5)
    reader.finish(5)
    assert len(reader._wire.sent) == 1
    reader.finish(6)
    assert len(reader._wire.sent) == 2


def test_readings_that_take_long_are_taken_less_often():
    reader = MetricReader(FakeWire(), 0, model())
    reader._wire.send = lambda message: time.sleep(0.01)
    began_ns = time.perf_counter_ns()
    reader.poll(1)
    assert reader._due_ns - began_ns >= 0.01e9 / metrics.SHARE


@pytest.mark.gpu
def test_on_the_gpu_a_reading_waits_for_no_step_and_is_of_one_moment():
    measured = model("cuda")
    wire = FakeWire()
    reader = MetricReader(wire, 0, measured)
    sample = torch.ones(1, 1, 8, device="cuda"), torch.ones(1, device="cuda")
    with torch.no_grad():
        measured(*sample)
        torch.cuda.synchronize()
        torch.cuda._sleep(2**31)  # about a second of GPU time
        measured(*sample)
        torch.cuda.set_sync_debug_mode("error")
        try:
            began = time.perf_counter()
            reader.poll(1)
            assert time.perf_counter() - began < 0.2
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert wire.sent == []
        torch.cuda.synchronize()
        measured(*sample)  # after the copy: must not be seen
        reader.poll(1)
    (reading,) = wire.sent
    assert reading.values["calls"] == [[2.0]]
    reader.finish(2)
    assert wire.sent[1].values["calls"] == [[3.0]]
