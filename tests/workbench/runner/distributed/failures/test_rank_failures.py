"""Ranks that are killed, stopped or out of memory at random moments: reported soon, nothing left.

``RANK_TRIALS`` is the number of trials of each failure, 1 by default.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator

import msgspec
import psutil
import pytest
from process_end import assert_end
from rank_checks import needs_cores
from runner_driver import Driver

from sessions.model import Configuration
from workbench import protocol

TRIALS = int(os.environ.get("RANK_TRIALS", "1"))
REPORTED_S = 3.0
MOST_WAIT_S = 0.5  # of steady steps before a failure
MARGIN_BYTES = 1 << 20  # of memory that stays free, less than a tensor of a step
KINDS = (
    {"data_parallel": "2"},
    {"data_parallel": "2", "sharding": "full"},
    {"tensor_parallel": "2"},
    {"pipeline_parallel": "2"},
)
# Every larger tensor is mapped by itself, so that a limit of the address space acts in the next
# step.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536"}

pytestmark = [needs_cores, pytest.mark.timeout(900 * TRIALS)]


def kill(pid: int) -> None:
    """End the process at once."""
    os.kill(pid, signal.SIGKILL)


def stop(pid: int) -> None:
    """Let the process hang."""
    os.kill(pid, signal.SIGSTOP)


def take_memory(pid: int) -> None:
    """Leave the process less memory than its next step needs."""
    most = psutil.Process(pid).memory_info().vms + MARGIN_BYTES
    resource.prlimit(pid, resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


@pytest.fixture
def driver(fail: Callable[[int], None]) -> Iterator[Driver]:
    """Return a runner of its own, whose workers inherit the environment that a failure needs."""
    driver = Driver(environment=ENVIRONMENT if fail is take_memory else {})
    driver.until_state("idle")
    yield driver
    driver.close()


@pytest.fixture
def configuration(small) -> Configuration:
    """Return a step whose tensors are larger than the margin."""
    model = {**small.model, "dim": 128, "n_kv_heads": 2}
    settings = {"batch": 8, "sequence": 256}
    return msgspec.structs.replace(small, workload="train", model=model, settings=settings)


def worker_of(driver: Driver) -> psutil.Process:
    """Return the process of rank 1."""
    runner = psutil.Process(driver.runner.process.pid)
    (worker,) = (p for p in runner.children() if "workbench.runner.rank_worker" in p.cmdline())
    return worker


@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        pytest.param(kill, "was ended by SIGKILL", marks=pytest.mark.slow),
        (stop, "was stopped by a signal"),
        pytest.param(take_memory, "memory", marks=pytest.mark.slow),
    ],
)
def test_a_failed_rank_is_reported_within_seconds_and_nothing_is_left(
    driver: Driver, configuration: Configuration, fail: Callable[[int], None], reason: str
):
    draw = random.Random(fail.__name__)
    delays = []
    for trial in range(TRIALS):
        toggles = draw.choice(KINDS)
        driver.start(msgspec.structs.replace(configuration, toggles=toggles))
        driver.until(protocol.EvidenceFound)
        driver.until_steps(2)
        worker = worker_of(driver)
        time.sleep(draw.uniform(0, MOST_WAIT_S))
        began = time.monotonic()
        fail(worker.pid)
        failure = driver.until(protocol.Failure)
        delays.append(next(at for at, of in reversed(driver.seen) if of is failure) - began)
        described = f"trial {trial} with {toggles}: {failure}"
        assert "Rank 1" in failure.sentence and "in step " in failure.sentence, described
        assert reason in failure.sentence, described
        driver.until_state("idle")
        assert_end([worker])
    assert max(delays) < REPORTED_S, sorted(delays)
    driver.start(configuration, steps=3)
    assert driver.finish().reason == "done", driver.describe()
    print(f"{fail.__name__}: {TRIALS} trials, reported within {max(delays):.2f} s")
