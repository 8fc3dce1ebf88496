"""On two GPUs: a rank without memory is reported, and nothing of it is left."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import msgspec
import psutil
import pytest
import torch
from process_end import assert_end
from rank_checks import BF16, needs_gpus
from runner_driver import Driver

from sessions.model import Configuration
from workbench import protocol

pytestmark = needs_gpus
LEFT_MIB = 2500  # of rank 1's GPU: enough for CUDA, NCCL and the model, and not for a step
STEP = Configuration(
    family="hydra", preset="base", workload="train", settings={"batch": 32, "sequence": 1024}
)
TAKE = f"""
import torch
free, _ = torch.cuda.mem_get_info(1)
taken = torch.empty(free - ({LEFT_MIB} << 20), dtype=torch.uint8, device="cuda:1")
torch.cuda.synchronize(1)
print("taken", flush=True)
input()
"""


@pytest.fixture
def full_gpu() -> Iterator[None]:
    """Let another process take almost all memory of the second GPU."""
    command = [sys.executable, "-c", TAKE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"taken\n"
        yield
        process.kill()


@pytest.fixture
def driver() -> Iterator[Driver]:
    """Return a runner of its own."""
    driver = Driver()
    driver.until_state("idle")
    yield driver
    driver.close()


@pytest.mark.parametrize(
    "toggles", [{"data_parallel": "2"}, {"data_parallel": "2", "sharding": "full"}], ids=str
)
@pytest.mark.usefixtures("full_gpu")
def test_a_rank_without_memory_is_reported_and_one_gpu_goes_on(driver: Driver, toggles):
    driver.start(msgspec.structs.replace(STEP, toggles=BF16 | toggles))
    failure = driver.until(protocol.Failure)
    assert "Rank 1" in failure.sentence and "memory" in failure.sentence, failure
    driver.until_state("idle")
    runner = psutil.Process(driver.runner.process.pid)
    assert_end([p for p in runner.children() if "workbench.runner.rank_worker" in p.cmdline()])
    assert torch.cuda.mem_get_info(1)[0] >> 20 >= LEFT_MIB - 1500  # less what this process uses
    driver.start(msgspec.structs.replace(STEP, toggles=BF16), steps=3)
    assert driver.finish().reason == "done", driver.describe()
