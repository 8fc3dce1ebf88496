"""Ranks that share each batch: their update is that of one device, and none outlives the others."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psutil
import pytest
import torch
from built import blocked, collect_evidence, step_without_peer, stepped
from ended import assert_end
from runner_driver import Driver

from sessions.model import Configuration, Evidence
from workbench import protocol
from workbench.runner.distributed import worker as worker_module
from workbench.runner.distributed import world
from workbench.runner.distributed.connection import Connection
from workbench.runner.distributed.messages import Build, Enter, Leave, Order
from workbench.runner.distributed.parallel import Parallel
from workbench.runner.distributed.worker import WorkerLoop
from workbench.runner.failures import explain
from workbench.runner.numerics import comparison, training_curve
from workbench.runner.suggested_fixes import cure
from workbench.runner.variants.variant import Arms

CPU = torch.device("cpu")
SLOW = pytest.mark.slow
needs_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two ranks need two CPU cores"
)


@pytest.fixture
def asked(small) -> Configuration:
    return msgspec.structs.replace(small, settings={"batch": 4, "sequence": 16})


def trained(asked: Configuration, steps: int, **toggles: str) -> tuple[list, list[torch.Tensor]]:
    """Losses and weights after some steps from the same weights, each of another batch."""
    arm = stepped(asked, arms=Arms(), **toggles)
    losses = []
    with arm.entered():
        for _ in range(steps):
            arm.batches.advance()
            losses.append(float(arm.step()))
    return losses, [each.detach().clone() for each in arm.model.parameters()]


@needs_cores
@pytest.mark.parametrize("family", ["hydra", "moe"])
def test_two_ranks_train_as_one_device_does(asked, family):
    model = asked.model if family == "hydra" else {}
    one = msgspec.structs.replace(asked, family=family, model=model)
    losses, weights = trained(one, 3)
    divided_losses, divided = trained(one, 3, data_parallel="2")
    if family == "moe":  # the balance of experts is of each share: near, and not the same
        assert divided_losses == pytest.approx(losses, rel=1e-3)
        assert divided_losses != pytest.approx(losses, rel=1e-6)
        return
    assert divided_losses == pytest.approx(losses, rel=1e-5)
    for ours, expected in zip(divided, weights, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=2e-5)


@needs_cores
def test_weights_that_another_configuration_trained_are_taken_over(asked):
    arms = Arms()
    stepped(asked, steps=3, arms=arms)
    arm = stepped(asked, steps=3, arms=arms, data_parallel="2")
    stepped(asked, steps=2, arms=arms)
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


def take_the_others_share(monkeypatch) -> None:
    """Let both ranks take the same rows."""
    monkeypatch.setattr(Parallel, "share", lambda self, whole: whole.part(1, 2))


@needs_cores
@pytest.mark.parametrize("plant", [None, keep_own_gradients, take_the_others_share])
def test_the_check_of_training_sees_what_is_not_the_update_of_the_whole_batch(
    asked, plant, monkeypatch
):
    if plant is not None:
        plant(monkeypatch)
    arm = stepped(asked, arms=Arms(), data_parallel="2")
    curve = training_curve.check(arm, torch.float64)
    assert curve.ok == (plant is None), curve.text


@needs_cores
def test_ranks_whose_weights_part_are_no_effect(asked, monkeypatch):
    arm = stepped(asked, steps=2, arms=Arms(), data_parallel="2")
    with arm.entered():
        arm.step()
        with torch.no_grad():
            next(arm.model.parameters()).flatten()[0] += 1e-3  # of rank 0 alone
        arm.divided.compare(arm)
    status, text = collect_evidence(arm)["data_parallel"]
    assert status == "no effect" and "ranks differ in 1 parameter" in text


@needs_cores
def test_a_peer_that_is_killed_ends_the_step_with_a_sentence_and_the_next_start_has_new_ones(asked):
    arms = Arms()
    arm = stepped(asked, arms=arms, data_parallel="2")
    with (
        pytest.raises(world.RankError, match=r"rank 1.* was ended by SIGKILL") as ended,
        arm.entered(),
    ):
        step_without_peer(arm)
    sentence = explain(ended.value).sentence
    assert sentence.startswith("Divided step: rank 1 (in step ")
    assert sentence.endswith(" was ended by SIGKILL, as the system does when memory runs out")
    offered = cure(explain(ended.value), arm.configuration, CPU)
    assert offered.set == {"data_parallel": "off"} and "one device continues alone" in offered.fix
    assert world.current() is None
    again = stepped(asked, arms=arms, steps=2, data_parallel="2")
    assert collect_evidence(again)["data_parallel"][0] == "effective"


@needs_cores
@pytest.mark.parametrize("toggle", ["data_parallel", pytest.param("tensor_parallel", marks=SLOW)])
def test_a_peer_that_is_killed_before_the_first_step_is_named(asked, monkeypatch, toggle):
    asked = msgspec.structs.replace(asked, model={**asked.model, "n_kv_heads": 2})
    arm = stepped(asked, arms=Arms(), **{toggle: "2"})
    assemble = Parallel._assemble

    def then_killed(self, arm):
        made = assemble(self, arm)
        os.kill(made.pids[1], signal.SIGKILL)
        return made

    monkeypatch.setattr(Parallel, "_assemble", then_killed)
    with pytest.raises(world.RankError, match=r"rank 1.* was ended by SIGKILL"), arm.entered():
        pass
    assert world.current() is None


@needs_cores
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        pytest.param("os._exit(3)", "rank 1 ended with exit code 3", marks=pytest.mark.slow),
        ("(_ for _ in ()).throw(RuntimeError('no room'))", "rank 1 ended: .*no room"),
    ],
)
def test_a_peer_that_cannot_join_is_named_soon_and_the_next_group_meets(monkeypatch, fault, said):
    code = (
        "import os; from workbench.runner.distributed import worker; "
        f"worker.join = lambda *_: {fault}; worker.main()"
    )
    world.close()
    monkeypatch.setattr(world, "JOIN_S", 3.0)
    with monkeypatch.context() as planted:
        planted.setattr(world, "_COMMAND", (sys.executable, "-c", code))
        with pytest.raises(world.RankError, match=said):
            world.of(2, CPU)
    assert world.current() is None
    assert len(world.of(2, CPU).pids) == 1
    backend = torch.distributed.group.WORLD._get_backend(CPU)
    assert backend.options._timeout == world.TIMEOUT, "a sum may take longer than to meet"


@needs_cores
def test_nothing_that_a_peer_starts_holds_its_orders_open_when_it_is_gone():
    (pid,) = world.of(2, CPU).pids.values()
    assert str(Path(f"/proc/{pid}/fd/0").readlink()) == os.devnull


@needs_cores
def test_what_a_peer_cannot_build_is_said_by_rank_0(asked):
    wrong = msgspec.structs.replace(asked, family="absent")
    with pytest.raises(world.RankError, match=r"rank 1: family: unknown 'absent'"):
        world.of(2, CPU).tell(Build(wrong))
        world.current().await_answers()
    assert world.current() is not None  # and the peer goes on


def test_a_worker_prepares_a_variant_once_as_rank_0_does(monkeypatch):
    monkeypatch.setattr(worker_module, "leave", lambda: None)  # it would end this process
    happened = []

    @contextlib.contextmanager
    def entered():
        happened.append("entered")
        yield

    arm = SimpleNamespace(
        trainer=SimpleNamespace(scaler=None),
        divided=SimpleNamespace(prepared=False, version=0, has_all=False),
        entered=entered,
        prepare=lambda: happened.append("prepared"),
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    loop = WorkerLoop(Connection(ours, Order))
    loop._arm = arm
    for _ in range(2):
        loop.follow(Enter())
        loop.follow(Leave())
    theirs.close()
    assert happened == ["entered", "prepared", "entered"]


@needs_cores
@pytest.mark.parametrize("sharding", ["off", "full"])
def test_a_model_of_your_own_trains_on_two_ranks(sharding):
    source = Path(__file__).parents[3] / "examples" / "own_model.py"
    own = Configuration(
        family="own", preset="file", model={"source": str(source)}, settings={"batch": 4}
    )
    arm = stepped(own, steps=2, arms=Arms(), data_parallel="2", sharding=sharding)
    assert {status for status, _ in collect_evidence(arm).values()} == {"effective"}
    checked = comparison.check(arm, arm.situation)
    assert checked.ok, checked.text


@needs_cores
def test_weights_move_only_if_something_has_changed_them(asked):
    arms = Arms()
    plain = stepped(asked, arms=arms)
    replicas = stepped(asked, arms=arms, data_parallel="2")
    shards = stepped(asked, arms=arms, data_parallel="2", sharding="full")
    moved = []
    for variant in (replicas, replicas, plain, replicas, shards, shards, plain, shards):
        with variant.entered():
            variant.step()
        if variant.divided is not None:
            moved.append(variant.divided.moved_bytes > 0)
    # Shards have changed the weights that replicas know, and the other way round.
    assert moved == [True, False, True, True, False, True]


@needs_cores
def test_a_graph_that_replays_updates_counts_as_a_change(asked):
    arms = Arms()
    plain, replicas = stepped(asked, arms=arms), stepped(asked, arms=arms, data_parallel="2")
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
    told = (
        "import time, torch; from workbench.runner.distributed import world; "
        "made = world.of(2, torch.device('cpu')); "
        "print(made.workers[0].process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", told], stdout=subprocess.PIPE) as rank_0:
        peer = psutil.Process(int(rank_0.stdout.readline()))
        rank_0.kill()
        assert_end([peer], limit_s=30)


def switched(runner: Driver, name: str, option: str, **toggles: str) -> Evidence:
    """Return the evidence of a toggle that is switched on and off again while steps are made."""
    asked = Configuration(
        family="hydra", preset="tiny", workload="train", settings={"batch": 4, "sequence": 16},
        model={"dim": 32, "n_layers": 2, "n_heads": 2, "n_kv_heads": 1, "max_sequence": 256},
        toggles=toggles,
    )  # fmt: skip
    begin = len(runner.messages)
    runner.send(protocol.Start(configuration=asked))
    runner.until(protocol.EvidenceFound)
    runner.send(protocol.Apply(toggles={name: option}))
    told = runner.until(
        lambda one: (
            isinstance(one, protocol.EvidenceFound)
            and any(each.toggle == name for each in one.evidence)
        )
    )
    runner.send(protocol.Apply(toggles={name: "off"}))
    runner.until(protocol.SegmentStarted)
    runner.finish(protocol.Stop())
    failures = [m for m in runner.messages[begin:] if isinstance(m, protocol.Failure)]
    assert not failures, failures
    return next(one for one in told.evidence if one.toggle == name)


@needs_cores
def test_the_runner_divides_its_steps_when_the_toggle_is_switched_while_it_runs(runner: Driver):
    begin = len(runner.messages)
    of_ranks = switched(runner, "data_parallel", "2")
    assert of_ranks.status == "effective", of_ranks.text
    assert "; resident set " in of_ranks.text and ", the most of all; " in of_ranks.text
    resident = [
        value
        for one in runner.messages[begin:]
        if isinstance(one, protocol.TelemetrySamples) and one.device == "cpu1"
        for value in one.columns.get("memory_used", [])
    ]
    assert resident and all(50e6 < value < 20e9 for value in resident), "of the other rank"


@pytest.mark.parametrize(
    ("workload", "batch", "toggles", "reason"),
    [
        ("forward", 4, {}, "acts on the backward pass"),
        ("train", 3, {}, "a batch of 3 cannot be divided among 2 ranks"),
        ("train", 4, {"adamw": "8bit_torchao"}, "moments in 8 bits"),
        ("train", 4, {"compile": "reduce-overhead"}, "captures CUDA graphs"),
        ("train", 4, {"cuda_graphs": "on"}, "a group of ranks that may have ended"),
    ],
)
def test_what_cannot_be_divided_says_why(asked, workload, batch, toggles, reason, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    wanted = msgspec.structs.replace(asked, settings={"batch": batch, "sequence": 16})
    assert reason in blocked(wanted, workload, **toggles)["data_parallel"]["2"].reason


def test_more_ranks_than_cores_are_blocked_with_both_numbers(asked, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    told = blocked(asked)["data_parallel"]
    assert told["2"].reason == "needs 2 CPU cores, and this machine has 1 CPU core"
    assert set(told) == {"2", "4", "8"}
