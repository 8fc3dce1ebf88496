"""Ranks that torchrun starts, under one agent for each of two hosts; they bound what is used."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from built import blocked
from hang_limit import HANG_S
from network_namespaces import ADDRESSES, INTERFACE, two_namespaces
from process_end import assert_end
from rank_checks import needs_cores, needs_two_gpus
from runner_driver import Driver

from sessions.model import Configuration
from workbench import protocol
from workbench.cli import main
from workbench.runner.distributed.supervisor import GRACE_S

TINY = (
    *("hydra", "--preset", "tiny", "--workload", "train", "--set", "batch=4"),
    *("--set", "sequence=16", "--set", "dim=32", "--set", "n_layers=2", "--set", "n_heads=2"),
)
REPORTED_S = 3.0


@dataclass(frozen=True)
class Hosts:
    """Two "hosts" of this machine: the second one's agent, and the command of the first one's."""

    first: tuple[str, ...]
    second: subprocess.Popen[bytes]
    log: Path

    @property
    def worker(self) -> psutil.Process:
        """The rank of the second host."""
        agent = psutil.Process(self.second.pid)
        (process,) = (
            p
            for p in agent.children(recursive=True)
            if "workbench.runner.rank_worker" in p.cmdline()
        )
        return process


def agent(port: int, host: int, ranks: int, address: str = "127.0.0.1") -> tuple[str, ...]:
    """Return the command of one host's agent, which starts ``ranks`` ranks."""
    return (
        *(sys.executable, "-P", "-m", "torch.distributed.run", "--nnodes", "2"),
        *("--nproc-per-node", str(ranks), "--node-rank", str(host)),
        *("--master-addr", address, "--master-port", str(port)),
        *("--max-restarts", "0", "-m", "workbench.runner"),
    )


@contextlib.contextmanager
def start_hosts(commands: list[tuple[str, ...]], log: Path) -> Iterator[Hosts]:
    """Start the second host's agent; afterwards both hosts have no process left."""
    with log.open("wb") as stream:
        second = subprocess.Popen(
            commands[1], stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
        )
    processes = [psutil.Process(second.pid)]
    try:
        yield Hosts(commands[0], second, log)
        second.wait(HANG_S)  # it ends with its ranks, and these with rank 0
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes += processes[0].children(recursive=True)
        second.terminate()
        second.wait()
        assert_end(processes)


@pytest.fixture
def hosts(tmp_path, monkeypatch, request) -> Iterator[Hosts]:
    """Return two hosts, with as many ranks each as the parameter says."""
    ranks = getattr(request, "param", 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with start_hosts([agent(port, host, ranks) for host in (0, 1)], tmp_path / "log") as hosts:
        yield hosts


@pytest.fixture
def gpu_hosts(tmp_path, monkeypatch) -> Iterator[Hosts]:
    """Return two hosts with one GPU each, which NCCL connects through sockets."""
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    commands = [with_gpu(host, agent(port, host, 1)) for host in (0, 1)]
    with start_hosts(commands, tmp_path / "log") as hosts:
        yield hosts


def with_gpu(host: int, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command whose only GPU belongs to a host of its own, also for NCCL."""
    variables = {"CUDA_VISIBLE_DEVICES": host, "NCCL_HOSTID": f"host-{host}"}
    return ("env", *(f"{name}={value}" for name, value in variables.items()), *command)


@needs_cores
def test_data_parallelism_over_two_hosts_has_a_verdict(hosts, capsys):
    assert_verdict(hosts, capsys)


@pytest.mark.gpu
@needs_two_gpus
def test_data_parallelism_over_two_hosts_with_gpus_has_a_verdict(gpu_hosts, capsys):
    assert_verdict(gpu_hosts, capsys, budget_s=4)  # no pair was complete after 1 s on H200s


def assert_verdict(hosts: Hosts, capsys: pytest.CaptureFixture[str], *, budget_s: int = 1) -> None:
    """Assert that one rank and two ranks on two hosts are compared, with evidence."""
    budget = ("--budget", str(budget_s))
    words = ("--b", "data_parallel=2", *budget, "--builds", "1", "--no-energy", "--json")
    code = main(["ab", *TINY, *words, "--runner", shlex.join(hosts.first)])
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert code == 0, (err, hosts.log.read_text())
    assert data["reason"] == "done" and not data["failures"] and not data["wrong"]
    assert data["pairs"] > 0 and data["ratio"] > 0, data["voids"]
    if data["low"] is None:  # too few pairs in a second on a busy machine
        assert data["verdict"] == "UNDECIDED"
    else:
        assert data["low"] < data["ratio"] < data["high"]
    evidence = {row["toggle"]: row for row in data["arms"][1]["evidence"]}["data_parallel"]
    assert evidence["status"] == "effective", evidence
    assert "2 ranks compute 2 sequences each" in evidence["text"]


@pytest.mark.slow
@needs_cores
@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_scaling_over_two_hosts_of_two_ranks_is_measured_and_right(hosts, capsys):
    words = ("--ranks", "1,2,4", "--kinds", "data,fsdp,data+tensor", "--budget", "0.5", "--json")
    code = main(
        ["scale", *TINY, "--set", "n_kv_heads=2", *words, "--runner", shlex.join(hosts.first)]
    )
    data = json.loads(capsys.readouterr().out)
    outcomes = {(row["kind"], row["count"]): row for row in data["efficiencies"]}
    assert code == 0 and len(outcomes) == 7
    refused = outcomes.pop(("data+tensor", 2))
    assert refused["outcome"] == "refused" and "at least 4" in refused["reason"]
    assert {row["outcome"] for row in outcomes.values()} == {"measured"}
    assert {row["wrong"] for row in outcomes.values()} == {0.0}
    assert len(data["ranks"]) == 2 + 2 + 4 + 4 + 4
    assert all(row["computing_ms"] > 0 for row in data["ranks"])


@pytest.mark.slow
@needs_cores
@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGKILL, "was ended by SIGKILL"), (signal.SIGSTOP, "was stopped by a signal")],
)
def test_a_failed_rank_of_another_host_is_named_and_one_device_goes_on(hosts, number, reason):
    assert_reported(hosts, lambda: hosts.worker.send_signal(number), reason)


@pytest.mark.gpu
@needs_two_gpus
def test_a_killed_rank_of_another_host_with_a_gpu_is_named(gpu_hosts):
    assert_reported(gpu_hosts, lambda: gpu_hosts.worker.kill(), "was ended by SIGKILL")


@pytest.mark.gpu
@needs_two_gpus
def test_a_vanished_host_with_a_gpu_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", INTERFACE)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", INTERFACE)
    with two_namespaces() as namespaces:
        commands = [
            namespaces.on(i, *with_gpu(i, agent(29500, i, 1, ADDRESSES[0]))) for i in (0, 1)
        ]
        with start_hosts(commands, tmp_path / "log") as hosts:
            assert_reported(hosts, namespaces.pull_cable, "its host does not answer")


@pytest.mark.slow
@needs_cores
def test_a_vanished_host_is_named_and_one_device_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", INTERFACE)
    with two_namespaces() as namespaces:
        commands = [namespaces.on(i, *agent(29500, i, 1, ADDRESSES[0])) for i in (0, 1)]
        with start_hosts(commands, tmp_path / "log") as hosts:
            assert_reported(hosts, namespaces.pull_cable, "its host does not answer")


def assert_reported(hosts: Hosts, fail: Callable[[], None], reason: str) -> None:
    """Assert that rank 0 names the second host's failure soon, which then has no rank left."""
    driver = Driver(command=hosts.first, environment={**os.environ})
    try:
        driver.until_state("idle")
        settings = {"batch": 4, "sequence": 16}
        alone = Configuration(family="hydra", preset="tiny", workload="train", settings=settings)
        together = protocol.Start(configuration=_with(alone, data_parallel="2"))
        driver.send(together)
        driver.until(protocol.EvidenceFound)
        worker = hosts.worker
        began_s = time.monotonic()
        fail()
        failure = driver.until(protocol.Failure, REPORTED_S)
        print(f"reported after {time.monotonic() - began_s:.2f} s: {failure.sentence}")
        assert failure.kind == "ranks", failure
        assert "Rank 1 (on " in failure.sentence and ", in step " in failure.sentence
        assert reason in failure.sentence
        assert_end([worker], REPORTED_S + GRACE_S)
        print(f"worker ended after {time.monotonic() - began_s:.2f} s")
        driver.until_state("idle")
        driver.start(_with(alone, data_parallel="off"), steps=3)
        assert driver.finish().reason == "done", driver.describe()
    finally:
        driver.close()


def _with(configuration: Configuration, **toggles: str) -> Configuration:
    return Configuration(
        family=configuration.family,
        preset=configuration.preset,
        workload=configuration.workload,
        settings=configuration.settings,
        toggles=toggles,
    )


@pytest.mark.parametrize("ranks", ["2", "4"])
def test_more_ranks_than_were_started_are_blocked(monkeypatch, ranks):
    monkeypatch.setenv("WORLD_SIZE", "2")
    configuration = Configuration(
        family="hydra", preset="tiny", workload="train", settings={"batch": 4, "sequence": 16}
    )
    options = blocked(configuration).get("data_parallel", {})
    reasons = {option: block.reason for option, block in options.items()}
    assert (ranks in reasons) == (ranks == "4")
    if ranks == "4":
        assert reasons[ranks] == "needs 4 ranks, but was started with 2"
