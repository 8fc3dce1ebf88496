"""Ranks that share a batch: they update like one device, and end together."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psutil
import pytest
import torch
from built import blocked, collect_evidence, step_without_peer, stepped
from hang_limit import HANG_S
from process_end import assert_end
from rank_checks import (
    CPU,
    assert_evidence,
    assert_right,
    configure,
    needs_cores,
    switch_on_and_off,
)
from runner_driver import Driver

from models import ConfigurationError
from sessions.model import Configuration
from workbench import protocol
from workbench.runner import rank_worker as worker_module
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.distributed import world
from workbench.runner.distributed.connection import Connection
from workbench.runner.distributed.messages import BuildVariant, Enter, Leave, Order
from workbench.runner.distributed.parallel import Parallel
from workbench.runner.failures import explain
from workbench.runner.numerics import training_curve
from workbench.runner.rank_worker import WorkerLoop
from workbench.runner.suggested_fixes import with_fix

SLOW = pytest.mark.slow
WITHOUT_LINEARS = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(16, 16))

    def forward(self, x):
        return x @ self.w

def build():
    return Own(), lambda batch: torch.randn(batch, 16), lambda output, x: output.float().mean()
"""


@pytest.fixture
def configuration(small) -> Configuration:
    return msgspec.structs.replace(small, settings={"batch": 4, "sequence": 16})


def train(
    configuration: Configuration, steps: int, **toggles: str
) -> tuple[list[float], list[torch.Tensor]]:
    """Return losses and weights of steps from the same weights, every step with another batch."""
    arm = stepped(configuration, arms=VariantCache(), **toggles)
    losses = []
    with arm.entered():
        for _ in range(steps):
            arm.batches.advance()
            losses.append(float(arm.step()))
    return losses, [parameter.detach().clone() for parameter in arm.model.parameters()]


@needs_cores
@pytest.mark.parametrize("family", ["hydra", "moe"])
def test_two_ranks_train_as_one_device_does(configuration, family):
    model = configuration.model if family == "hydra" else {}
    configuration = msgspec.structs.replace(configuration, family=family, model=model)
    losses, weights = train(configuration, 3)
    divided_losses, divided = train(configuration, 3, data_parallel="2")
    if family == "moe":  # every rank balances experts over its own rows: near, and not the same
        assert divided_losses == pytest.approx(losses, rel=1e-3)
        assert divided_losses != pytest.approx(losses, rel=1e-6)
        return
    assert divided_losses == pytest.approx(losses, rel=1e-5)
    for ours, expected in zip(divided, weights, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=2e-5)


@needs_cores
def test_several_compressed_buckets_do_not_wait_for_one_another():
    """PowerSGD begins in the third step, and sends each bucket in several parts."""
    toggles = {"data_parallel": "2", "gradient_compression": "powersgd"}
    arm = stepped(configure(sequence=32), steps=5, arms=VariantCache(), **toggles)
    assert arm.divided.replicate.reductions.buckets > 1
    assert_evidence(arm, "gradient_compression", "effective", "of gradients per step were sent as")


def test_weights_that_another_configuration_trained_are_loaded(configuration):
    arms = VariantCache()
    stepped(configuration, steps=3, arms=arms)
    arm = stepped(configuration, steps=3, arms=arms, data_parallel="2")
    stepped(configuration, steps=2, arms=arms)
    with arm.entered():
        for _ in range(2):
            arm.batches.advance()
            arm.step()
    status, text = collect_evidence(arm)["data_parallel"]
    assert status == "effective" and "2 ranks compute 2 sequences each" in text
    assert "123 KiB of gradients are averaged in 1 bucket" in text
    assert "equal to the last bit" in text


def keep_own_gradients(monkeypatch) -> None:
    """Let rank 0 continue with the gradients of its own rows."""
    finish = Parallel._finish_gradients

    def alone(self):
        finish(self)
        for parameter in self.weights.own.parameters.values():
            parameter.grad = parameter.grad + 0.5 * parameter.grad.abs().mean()

    monkeypatch.setattr(Parallel, "_finish_gradients", alone)


def take_the_same_rows(monkeypatch) -> None:
    """Let both ranks take the second half of the batch."""
    monkeypatch.setattr(Parallel, "local_batches", lambda self, batches: batches.part(1, 2))


@pytest.mark.sample(1)
@needs_cores
@pytest.mark.parametrize("plant", [None, keep_own_gradients, take_the_same_rows])
def test_the_check_of_training_notices_updates_that_are_not_of_the_full_batch(
    configuration, plant, monkeypatch
):
    if plant is not None:
        plant(monkeypatch)
    arm = stepped(configuration, arms=VariantCache(), data_parallel="2")
    curve = training_curve.check(arm, torch.float64)
    assert curve.ok == (plant is None), curve.text


@needs_cores
def test_ranks_whose_weights_diverge_are_no_effect(configuration, monkeypatch):
    arm = stepped(configuration, steps=2, arms=VariantCache(), data_parallel="2")
    with arm.entered():
        arm.step()
        with torch.no_grad():
            next(arm.model.parameters()).flatten()[0] += 1e-3  # of rank 0 alone
        arm.divided.compare(arm)
    status, text = collect_evidence(arm)["data_parallel"]
    assert status == "no effect" and "ranks differ in 1 parameter" in text


@needs_cores
def test_a_peer_that_is_killed_ends_the_step_with_a_sentence_and_the_next_start_has_new_ones(
    configuration,
):
    arms = VariantCache()
    arm = stepped(configuration, arms=arms, data_parallel="2")
    with (
        pytest.raises(world.RankError, match=r"rank 1.* was ended by SIGKILL") as ended,
        arm.entered(),
    ):
        step_without_peer(arm)
    sentence = explain(ended.value).sentence
    assert sentence.startswith("Rank 1 (in step ")
    assert sentence.endswith(" was ended by SIGKILL, as the system does when memory runs out")
    offered = with_fix(explain(ended.value), arm.situation.configuration, CPU)
    assert offered.set == {"data_parallel": "off"} and "one device continues alone" in offered.fix
    assert world.current() is None
    again = stepped(configuration, arms=arms, steps=2, data_parallel="2")
    assert collect_evidence(again)["data_parallel"][0] == "effective"


@needs_cores
@pytest.mark.parametrize("toggle", ["data_parallel", pytest.param("tensor_parallel", marks=SLOW)])
def test_a_peer_that_is_killed_before_the_first_step_is_named(configuration, monkeypatch, toggle):
    configuration = msgspec.structs.replace(
        configuration, model={**configuration.model, "n_kv_heads": 2}
    )
    arm = stepped(configuration, arms=VariantCache(), **{toggle: "2"})
    assemble = Parallel._ready_ranks

    def then_killed(self, variant):
        ranks = assemble(self, variant)
        os.kill(ranks.pids[1], signal.SIGKILL)
        return ranks

    monkeypatch.setattr(Parallel, "_ready_ranks", then_killed)
    with pytest.raises(world.RankError, match=r"rank 1.* was ended by SIGKILL"), arm.entered():
        pass
    assert world.current() is None


@needs_cores
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param("os._exit(3)", "rank 1 ended with exit code 3", marks=pytest.mark.slow),
        ("(_ for _ in ()).throw(RuntimeError('no room'))", "rank 1 ended: .*no room"),
    ],
)
def test_a_peer_that_cannot_join_is_named_soon_and_the_next_group_meets(monkeypatch, fault, reason):
    code = (
        "import os; from workbench.runner import rank_worker as worker; "
        f"worker.join = lambda *_: {fault}; worker.main()"
    )
    world.close()
    with monkeypatch.context() as planted:
        planted.setattr(world, "JOIN_S", 3.0)
        planted.setattr(world, "_COMMAND", (sys.executable, "-c", code))
        with pytest.raises(world.RankError, match=reason):
            world.of(2, CPU)
    assert world.current() is None
    assert len(world.of(2, CPU).pids) == 1
    backend = torch.distributed.group.WORLD._get_backend(CPU)
    assert backend.options._timeout == world.TIMEOUT, "a sum may take longer than to meet"


@needs_cores
def test_workers_do_not_inherit_the_input_of_the_runner():
    (pid,) = world.of(2, CPU).pids.values()
    assert str(Path(f"/proc/{pid}/fd/0").readlink()) == os.devnull


@needs_cores
def test_rank_0_reports_what_a_worker_cannot_build(configuration):
    wrong = msgspec.structs.replace(configuration, family="absent")
    with pytest.raises(world.RankError, match=r"rank 1: family: unknown 'absent'"):
        world.of(2, CPU).send(BuildVariant(wrong))
        world.current().await_answers()
    assert world.current() is not None  # and the worker continues


def test_a_worker_prepares_a_variant_once_as_rank_0_does(monkeypatch):
    left = threading.Event()
    # It would end this process.
    monkeypatch.setattr(worker_module, "leave", lambda code: left.set() if code == 0 else None)
    happened = []

    @contextlib.contextmanager
    def entered():
        happened.append("entered")
        yield

    arm = SimpleNamespace(
        trainer=SimpleNamespace(scaler=None),
        divided=SimpleNamespace(has_prepared=False, version=0, is_set_up=False),
        entered=entered,
        prepare=lambda: happened.append("prepared"),
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    loop = WorkerLoop(Connection(ours, Order))
    loop._variant = arm
    for _ in range(2):
        loop.handle(Enter())
        loop.handle(Leave())
    theirs.close()
    assert left.wait(HANG_S), "the end of the connection ends a worker"
    assert happened == ["entered", "prepared", "entered"]


@needs_cores
@pytest.mark.parametrize("sharding", ["off", "full"])
def test_a_model_of_your_own_trains_on_two_ranks(sharding):
    source = Path(__file__).parents[3] / "examples" / "own_model.py"
    own = Configuration(
        family="own", preset="file", model={"source": str(source)}, settings={"batch": 4}
    )
    arm = stepped(own, steps=2, arms=VariantCache(), data_parallel="2", sharding=sharding)
    assert {status for status, _ in collect_evidence(arm).values()} == {"effective"}
    assert_right(arm)


@needs_cores
def test_a_sparse_gradient_on_two_ranks_names_its_remedy(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\n"
        "def build():\n"
        "    layer = torch.nn.Embedding(9, 8, sparse=True)\n"
        "    return layer, lambda n: torch.randint(9, (n, 4)), lambda y, x: y.mean()\n"
    )
    own = Configuration(
        family="own", preset="file", model={"source": str(path)}, settings={"batch": 4}
    )
    with pytest.raises((ConfigurationError, world.RankError), match=r"is sparse.*sparse=False"):
        stepped(own, data_parallel="2")


@needs_cores
@pytest.mark.parametrize("sharding", ["off", "full"])
def test_evidence_that_calls_a_model_without_linear_layers_calls_it_on_all_ranks(
    tmp_path, sharding
):
    path = tmp_path / "mine.py"
    path.write_text(WITHOUT_LINEARS)
    own = Configuration(
        family="own", preset="file", model={"source": str(path)}, settings={"batch": 4}
    )
    toggles = {"data_parallel": "2", "sharding": sharding, "precision": "amp_bf16"}
    arm = stepped(own, steps=2, arms=VariantCache(), **toggles)
    status, text = collect_evidence(arm)["precision"]
    assert status == "effective" and "computed in torch.bfloat16" in text
    with arm.entered():
        arm.step()


@needs_cores
def test_weights_move_only_after_a_change(configuration):
    arms = VariantCache()
    plain = stepped(configuration, arms=arms)
    replicas = stepped(configuration, arms=arms, data_parallel="2")
    shards = stepped(configuration, arms=arms, data_parallel="2", sharding="full")
    moved = []
    for variant in (replicas, replicas, plain, replicas, shards, shards, plain, shards):
        with variant.entered():
            variant.step()
        if variant.divided is not None:
            moved.append(variant.divided.moved_bytes > 0)
    # Shards change the weights that replicas have loaded, and replicas those of shards.
    assert moved == [True, False, True, True, False, True]


@needs_cores
def test_a_graph_that_replays_updates_counts_as_a_change(configuration):
    arms = VariantCache()
    plain = stepped(configuration, arms=arms)
    replicas = stepped(configuration, arms=arms, data_parallel="2")
    with replicas.entered():
        replicas.step()
    with plain.entered():
        pass  # a replay changes weights, and not the versions that torch counts
    with replicas.entered():
        assert replicas.divided.moved_bytes > 0


@needs_cores
def test_no_other_host_can_connect_to_ranks(monkeypatch):
    for name in world._INTERFACES:
        monkeypatch.setenv(name, "eth0")
    world.close()
    processes = [psutil.Process(), *map(psutil.Process, world.of(2, CPU).pids.values())]
    listening = [
        listener.laddr.ip
        for process in processes
        for listener in process.net_connections("inet")
        if listener.status == psutil.CONN_LISTEN
    ]
    assert listening and {ipaddress.ip_address(ip).is_loopback for ip in listening} == {True}
    assert os.environ["GLOO_SOCKET_IFNAME"] == os.environ["NCCL_SOCKET_IFNAME"] == "lo"
    world.close()


@needs_cores
def test_a_peer_ends_when_rank_0_is_killed():
    code = (
        "import time, torch; from workbench.runner.distributed import world; "
        "ranks = world.of(2, torch.device('cpu')); "
        "print(ranks.workers[0].process.pid, flush=True); time.sleep(1e6)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as rank_0:
        peer = psutil.Process(int(rank_0.stdout.readline()))
        rank_0.kill()
        assert_end([peer])


@needs_cores
def test_the_runner_divides_its_steps_when_the_toggle_is_switched_while_it_runs(
    configuration, runner: Driver
):
    begin = len(runner.messages)
    evidence = switch_on_and_off(runner, configuration, "data_parallel", "2")
    assert evidence.status == "effective", evidence.text
    assert "; highest resident set: " in evidence.text
    resident = [
        value
        for message in runner.messages[begin:]
        if isinstance(message, protocol.TelemetrySamples) and message.device == "cpu1"
        for value in message.columns.get("memory_used", [])
    ]
    assert resident and all(50e6 < value < 20e9 for value in resident), "of the other rank"


@pytest.mark.parametrize(
    ("workload", "batch", "toggles", "reason"),
    [
        ("forward", 4, {}, "needs a backward pass"),
        ("train", 3, {}, "a batch of 3 cannot be divided among 2 ranks"),
        ("train", 4, {"adamw": "8bit_torchao"}, "8-bit optimizer states"),
        ("train", 4, {"compile": "reduce-overhead"}, "captures CUDA graphs"),
    ],
)
def test_what_cannot_be_divided_says_why(
    configuration, two_cores, workload, batch, toggles, reason
):
    settings = {"batch": batch, "sequence": 16}
    configuration = msgspec.structs.replace(configuration, settings=settings)
    assert reason in blocked(configuration, workload, **toggles)["data_parallel"]["2"].reason


def test_more_ranks_than_cores_are_blocked_with_both_numbers(configuration, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    options = blocked(configuration)["data_parallel"]
    assert options["2"].reason == "needs 2 CPU cores; this machine has 1"
    assert set(options) == {"2", "4", "8"}
