"""On two GPUs: a rank without memory is reported, and nothing of it is left."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec
import pytest
import torch
from rank_checks import BF16, needs_gpus
from runner_driver import Driver

from sessions.model import Configuration
from workbench import protocol

pytestmark = needs_gpus
ALLOWED_MIB = 200  # more than idle ranks use
FREED_S = 30.0
STEP = Configuration(
    family="hydra", preset="base", workload="train", settings={"batch": 32, "sequence": 1024}
)
SMALL = Configuration(
    family="hydra", preset="tiny", workload="train", settings={"batch": 4, "sequence": 64}
)
DATA = {"data_parallel": "2"}
TAKE = """
import sys, torch
free, _ = torch.cuda.mem_get_info(1)
taken = torch.empty(free - (int(sys.argv[1]) << 20), dtype=torch.uint8, device="cuda:1")
torch.cuda.synchronize(1)
print("taken", flush=True)
input()
"""


@contextlib.contextmanager
def full_gpu(left_mib: int) -> Iterator[None]:
    """Let another process take all memory of the second GPU, except this."""
    command = [sys.executable, "-c", TAKE, str(left_mib)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"taken\n"
        yield
        process.kill()


def free_mib() -> int:
    """Return the free memory of the second GPU."""
    total = torch.cuda.get_device_properties(1).total_memory
    return (total - torch.cuda.device_memory_used(1)) >> 20


@pytest.fixture
def driver() -> Iterator[Driver]:
    """Return a runner of its own."""
    driver = Driver()
    driver.until_state("idle")
    yield driver
    driver.close()


@pytest.mark.parametrize(
    ("left_mib", "toggles"),
    [
        pytest.param(2500, DATA, id="for the model"),
        pytest.param(8000, DATA, id="for a step"),
        pytest.param(8000, DATA | {"sharding": "full"}, id="for a step of FSDP"),
    ],
)
def test_a_rank_without_memory_is_reported_and_all_go_on(driver: Driver, left_mib, toggles):
    def steps(configuration: Configuration, **options: str) -> None:
        driver.start(msgspec.structs.replace(configuration, toggles=BF16 | options), steps=3)
        assert driver.finish().reason == "done", driver.describe()

    with full_gpu(left_mib):
        steps(SMALL, **toggles)
        idle_mib = free_mib()  # beside CUDA and NCCL in rank 1
        driver.start(msgspec.structs.replace(STEP, toggles=BF16 | toggles))
        failure = driver.until(protocol.Failure)
        assert "Rank 1" in failure.sentence and "memory" in failure.sentence, failure
        driver.until_state("idle")
        deadline_s = time.monotonic() + FREED_S
        while free_mib() < idle_mib - ALLOWED_MIB:
            assert time.monotonic() < deadline_s, f"{free_mib()} MiB are free, before {idle_mib}"
            time.sleep(0.1)
        steps(STEP)
    steps(STEP, **toggles)
