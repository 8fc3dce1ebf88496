"""Ranks that torchrun starts, under one agent for each of two hosts: the window talks to rank 0."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from ended import assert_end
from runner_driver import Driver
from test_ranks import needs_cores, switched

from sessions.model import Configuration
from workbench import protocol

pytestmark = needs_cores


def agent(port: int, host: int) -> tuple[str, ...]:
    """Return the command of one host's agent, which starts one rank."""
    return (
        *(sys.executable, "-P", "-m", "torch.distributed.run", "--nnodes", "2"),
        *("--nproc-per-node", "1", "--rdzv-backend", "static", "--node-rank", str(host)),
        *("--master-addr", "127.0.0.1", "--master-port", str(port)),
        *("--max-restarts", "0", "-m", "workbench.runner"),
    )


def ranks_below(process: psutil.Process) -> list[psutil.Process]:
    """Return the rank that an agent has started."""
    return [p for p in process.children(recursive=True) if "workbench.runner" in p.cmdline()]


def test_ranks_of_two_hosts_train_and_the_failure_of_one_is_reported_with_its_host(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    log = (tmp_path / "second.log").open("wb")
    second = subprocess.Popen(
        agent(port, 1), env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
    )
    driver = Driver(command=agent(port, 0), environment={"OMP_NUM_THREADS": "1"})
    try:
        driver.until_state("idle", 120.0)
        of_ranks = switched(driver, "data_parallel", "2")
        assert of_ranks.status == "effective", of_ranks.text
        (worker,) = ranks_below(psutil.Process(second.pid))
        asked = Configuration(
            family="hydra",
            preset="tiny",
            workload="train",
            settings={"batch": 4, "sequence": 16},
            toggles={"data_parallel": "2"},
        )
        driver.send(protocol.Start(configuration=asked))
        driver.until(protocol.EvidenceFound)
        worker.kill()
        failure = driver.until(protocol.Failure, 10.0)
        assert failure.kind == "ranks", failure
        assert "rank 1 (on " in failure.sentence and ", in step " in failure.sentence
        assert "ended, or its host cannot be reached" in failure.sentence
        driver.until_state("idle")
        alone = switched(driver, "adamw", "foreach")  # rank 0 continues with one device
        assert alone.status == "effective"
    finally:
        processes = [psutil.Process(second.pid), psutil.Process(driver.runner.process.pid)]
        with contextlib.suppress(psutil.NoSuchProcess):
            processes += [p for agent in processes for p in agent.children(recursive=True)]
        driver.close()
        second.terminate()
        second.wait()
        log.close()
    assert_end(processes, limit_s=30)


@pytest.mark.parametrize("ranks", ["2", "4"])
def test_more_ranks_than_were_started_are_blocked(small, monkeypatch, ranks):
    from built import blocked

    monkeypatch.setenv("WORLD_SIZE", "2")
    asked = Configuration(
        family="hydra", preset="tiny", workload="train", settings={"batch": 4, "sequence": 16}
    )
    reasons = {name: one.reason for name, one in blocked(asked).get("data_parallel", {}).items()}
    assert (ranks in reasons) == (ranks == "4")
    if ranks == "4":
        assert reasons[ranks] == "needs 4 ranks, and 2 were started"
