"""Faults that only a GPU has, provoked on one: each is a sentence, and the next run works."""

from __future__ import annotations

import pytest
from runner_driver import FAULTY, Driver
from test_faults import assert_works, faulty

from workbench import protocol
from workbench.client import runner_process

pytestmark = pytest.mark.gpu


def test_gpu_memory_that_runs_out_is_one_sentence_and_the_runner_stays():
    driver = Driver(command=FAULTY)
    try:
        driver.until_state("idle")
        driver.start(faulty("fill-gpu", call=8))
        assert driver.finish().reason == "failed"
        (failure,) = (m for m in driver.messages if isinstance(m, protocol.Failure))
        assert (failure.kind, failure.fatal) == ("out-of-memory", False)
        assert failure.sentence.startswith("Out of memory: 65536.00 GiB more was needed and ")
        assert_works(driver)
    finally:
        driver.close()


def test_a_kernel_that_reads_out_of_bounds_costs_the_runner_and_not_the_session():
    driver = Driver(command=FAULTY)
    try:
        driver.until_state("idle")
        driver.start(faulty("out-of-bounds", call=8))
        failures = [m for m in driver.rest() if isinstance(m, protocol.Failure)]
    finally:
        driver.close()
    assert [failure.fatal for failure in failures] == [True]
    assert failures[0].sentence.startswith(
        "The GPU reported an error that its process cannot recover from: CUDA error: device-side"
    )
    assert len(driver.session.segments[0].steps["t_s"]) > 0
    assert_a_new_runner_works()


def test_a_gpu_that_is_busy_for_days_is_told_and_cancelled_by_force(monkeypatch):
    monkeypatch.setattr(runner_process, "GRACE_S", 2.0)
    driver = Driver(command=FAULTY, environment={"WORKBENCH_HANG_S": "2"})
    try:
        driver.until_state("idle")
        assert_works(driver)  # a GPU's first step of all can take as long as this takes for a hang
        driver.start(faulty("busy-gpu", call=8))
        hang = driver.until(protocol.Failure)
        assert (hang.kind, hang.fatal) == ("hang", False)
        driver.runner.cancel()
        deaths = [m for m in driver.rest() if isinstance(m, protocol.Failure)]
    finally:
        driver.close()
    assert deaths[-1].fatal and "did not stop when cancelled" in deaths[-1].sentence
    assert_a_new_runner_works()


def assert_a_new_runner_works() -> None:
    driver = Driver(command=FAULTY)
    try:
        driver.until_state("idle")
        assert_works(driver)
    finally:
        driver.close()
