"""Ranks that shard weights, gradients and moments train as replicas do."""

from __future__ import annotations

import os

import msgspec
import pytest
import torch
from built import blocked, collect_evidence, step_without_peer, stepped
from rank_checks import CPU, assert_right, needs_cores, switch_on_and_off
from runner_driver import Driver

from models import FAMILIES, Sharding
from sessions.model import Configuration
from workbench import protocol
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.estimate import footprint
from workbench.runner.config.resolve import resolve
from workbench.runner.distributed import world
from workbench.runner.distributed.data import FullyShard
from workbench.runner.distributed.local_weights import LocalWeights, local
from workbench.runner.distributed.parallel import Parallel
from workbench.runner.experiments import checks
from workbench.runner.experiments.profile import known_memory
from workbench.runner.numerics import training_curve
from workbench.runner.suggested_fixes import with_fix
from workbench.runner.variants.variant import Variant

pytestmark = needs_cores
OPTIONS = ("gradients", "full", "offload")
HALF = {"precision": "bf16"}  # without FP32 copies of the weights


@pytest.fixture
def configuration(small) -> Configuration:
    return msgspec.structs.replace(small, settings={"batch": 4, "sequence": 16})


def step_sharded(
    configuration: Configuration, option: str, arms: VariantCache | None = None, **toggles: str
) -> Variant:
    """Return an arm of two ranks with shards, after a step."""
    toggles = {"data_parallel": "2", "sharding": option, **toggles}
    return stepped(configuration, arms=arms or VariantCache(), **toggles)


def train(arm: Variant, steps: int = 3) -> list[float]:
    """Return the losses of steps, each of another batch."""
    losses = []
    with arm.entered():
        for _ in range(steps):
            arm.batches.advance()
            losses.append(float(arm.step()))
    return losses


def copy_state(arm: Variant) -> dict[str, torch.Tensor]:
    """Return copies of the full weights, moments and step counts."""
    copies = {}
    for name, parameter in arm.plain_weights().items():
        copies[name] = parameter.detach().clone()
        moments = arm.full_trainer.optimizer.state[parameter].items()
        copies |= {f"{name} {kind}": value.clone() for kind, value in moments}
    return copies


def assert_near(state: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert state.keys() == expected.keys()
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=2e-5)


@pytest.mark.sample(1)
@pytest.mark.parametrize("option", OPTIONS)
def test_shards_train_as_replicas_do_and_other_variants_continue_from_them(configuration, option):
    losses, states = [], []
    for sharding in ("off", option):
        arms = VariantCache()
        plain = stepped(configuration, arms=arms)
        arm = step_sharded(configuration, sharding, arms)
        losses.append([*train(arm, 2), *train(plain, 2), *train(arm, 2)])
        states.append(copy_state(plain))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert_near(states[1], states[0])
    assert {float(value) for name, value in states[1].items() if name.endswith("step")} == {9.0}
    status, text = collect_evidence(arm)["sharding"]
    assert status == "effective", text
    assert "holds 61.3 KiB of 123 KiB of weights and 123 KiB of 245 KiB of moments" in text
    assert "equal to the last bit" in text


def test_collecting_evidence_between_steps_does_not_change_them(configuration):
    undisturbed, arm = (step_sharded(configuration, "full") for _ in range(2))
    losses = []
    with arm.entered():
        for _ in range(3):
            arm.batches.advance()
            losses.append(float(arm.step()))
            arm.evidence = None
            assert collect_evidence(arm)["sharding"][0] == "effective"
    assert losses == train(undisturbed)


def test_one_core_says_why_nothing_can_be_sharded(configuration, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    options = blocked(configuration)["sharding"]
    reasons = {block.reason for option, block in options.items() if option != "hybrid"}
    assert reasons == {"needs 2 CPU cores; this machine has 1"}


def test_a_profile_counts_the_shards_of_this_rank(configuration):
    arm = step_sharded(configuration, "full")
    with arm.entered():
        for _ in range(2):
            arm.step()
        sizes = dict.fromkeys(("optimizer", "parameters"), 0)
        for role, size in known_memory(arm, CPU).blocks.values():
            if role in sizes:
                sizes[role] += size
    weights = sum(parameter.nbytes for parameter in arm.plain_weights().values())
    assert sizes["optimizer"] == pytest.approx(weights, rel=0.02)  # two moments, half of each
    assert sizes["parameters"] < 0.6 * weights + 40_000


def keep_own_gradients(monkeypatch) -> None:
    """Let rank 0 update its shards by other gradients."""
    finish = Parallel._finish_gradients

    def alone(self):
        finish(self)
        for parameter in self.weights.own.parameters.values():
            own = local(parameter.grad)
            own += 0.5 * own.abs().mean()

    monkeypatch.setattr(Parallel, "_finish_gradients", alone)


def forget_moments(monkeypatch) -> None:
    """Let rank 0 start with zero moments in every step."""
    finish = Parallel._finish_gradients

    def forget(self):
        finish(self)
        for states in self._trainer.optimizer.state.values():
            for kind in ("exp_avg", "exp_avg_sq"):
                local(states[kind]).zero_()

    monkeypatch.setattr(Parallel, "_finish_gradients", forget)


def leave_a_shard_out(monkeypatch) -> None:
    """Store zeros instead of the other rank's shards."""
    unshard = LocalWeights._unshard

    def own_half(self, part):
        full = unshard(self, part)
        if local(part) is not part:
            full[local(part).shape[0] :] = 0
        return full

    monkeypatch.setattr(LocalWeights, "_unshard", own_half)


@pytest.mark.sample(1)
@pytest.mark.parametrize("plant", [None, keep_own_gradients, forget_moments])
def test_the_check_of_training_sees_a_shard_that_goes_its_own_way(
    configuration, plant, monkeypatch
):
    if plant is not None:
        plant(monkeypatch)
    arm = step_sharded(configuration, "full")
    curve = training_curve.check(arm, torch.float64)
    assert curve.ok == (plant is None), curve.text
    assert collect_evidence(arm)["sharding"][0] == "effective"  # no rank has the same shard


def test_shards_that_are_not_stored_are_no_effect(configuration, monkeypatch):
    leave_a_shard_out(monkeypatch)
    status, text = collect_evidence(step_sharded(configuration, "full"))["sharding"]
    assert status == "no effect" and "ranks differ in" in text, text


@pytest.mark.parametrize(
    ("toggles", "option", "reason", "fix"),
    [
        ({}, "full", "needs data parallelism", {"data_parallel": "2"}),
        ({"data_parallel": "2"}, "hybrid", "needs four ranks", {"data_parallel": "4"}),
        (
            {"data_parallel": "2", "precision": "amp_fp16"},
            "offload",
            "this option keeps them on the host",
            {"precision": "amp_bf16"},
        ),
        (
            {"data_parallel": "2", "kernel_tuning": "on"},
            "full",
            "each device has only its shards",
            {"kernel_tuning": "cached"},
        ),
        (
            {"data_parallel": "2", "activation_offload": "on"},
            "full",
            "would also move the gathered weights to the host",
            {"activation_offload": "off", "checkpointing": "full"},
        ),
    ],
)
def test_what_cannot_be_sharded_says_why_and_what_to_set(
    configuration, many_cores, toggles, option, reason, fix
):
    block = blocked(configuration, **toggles)["sharding"][option]
    assert reason in block.reason and block.set == fix
    block = blocked(configuration, "forward")["sharding"][option]
    assert "needs a backward pass" in block.reason


def test_an_addition_that_needs_the_next_norm_is_not_combined_with_shards(configuration):
    configuration = msgspec.structs.replace(configuration, family="mamba2", model={})
    block = blocked(configuration, data_parallel="2", fused_add_norm="torch")["sharding"]["full"]
    assert "before its weights are gathered" in block.reason
    assert block.set == {"fused_add_norm": "off"}


def test_the_estimate_divides_what_ranks_shard(configuration):
    base = msgspec.structs.replace(configuration, preset="base", model={}, workload="train")

    def estimated(option):
        toggles = {"data_parallel": "2", "sharding": option}
        return footprint(resolve(msgspec.structs.replace(base, toggles=toggles), CPU))

    replicas, gradients, full = map(estimated, ("off", "gradients", "full"))
    assert gradients.optimizer == full.optimizer == replicas.optimizer // 2
    assert gradients.gradients == full.gradients
    assert full.weights < replicas.weights < gradients.weights  # a shard beside gathered weights
    assert full.total < gradients.total < replicas.total
    step = {"workload": "train", "batch": 1, "sequence": 16}
    config = FAMILIES["hydra"].presets["base"]
    eighth = Sharding(ranks=8, shares_weights=True)
    eighths = FAMILIES["hydra"].footprint(config, sharding=eighth, **step)
    assert eighths.weights < full.weights and eighths.optimizer == replicas.optimizer // 8


def test_shards_are_offered_first_where_ranks_run_out_of_memory(configuration):
    failure = protocol.Failure(kind="out-of-memory", sentence="", fix="")
    toggles = {"data_parallel": "2"}
    offered = []
    for _ in range(2):
        short = msgspec.structs.replace(configuration, workload="train", toggles=toggles)
        offered.append(with_fix(failure, short, CPU).set)
        toggles = toggles | offered[-1]
    assert offered == [{"sharding": "full"}, {"checkpointing": "full"}]


# Slow: on CPUs the profiler misses memory that gloo's threads free, which depends on the load.
@pytest.mark.slow
def test_steps_leave_nothing_behind(configuration):
    arm = step_sharded(configuration, "full")
    steady = checks.steady_memory(arm, 6)
    assert "leak no memory" in steady.evidence, steady.evidence
    step, leak = arm.step, []
    arm.step = lambda: leak.append(torch.zeros(4)) or step()
    steady = checks.steady_memory(arm, 6)
    assert steady.status == "fail" and "each step leaks" in steady.evidence


# The last of the quick tests: it ends the worker, which others use.
def test_a_rank_that_ends_takes_no_weights_with_it(configuration):
    arms = VariantCache()
    arm = step_sharded(configuration, "full", arms)
    before = copy_state(arm)
    with pytest.raises(world.RankError, match=r"rank 1.* was ended by SIGKILL"), arm.entered():
        arm.step()
        step_without_peer(arm)
    assert all(torch.equal(value, before[name]) for name, value in copy_state(arm).items())
    again = step_sharded(configuration, "full", arms)  # on new ranks
    assert collect_evidence(again)["sharding"][0] == "effective"


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "toggles",
    [{}, {"checkpointing": "full"}, {"checkpointing": "operators"}, HALF],
    ids=lambda toggles: next(iter(toggles.values()), "plain"),
)
def test_every_family_trains_on_gathered_weights_as_on_complete_ones(family, toggles):
    settings = {"batch": 4, "sequence": 32}
    configuration = Configuration(family=family, preset="tiny", settings=settings, workload="train")
    # Steps and decays of Mamba-2 have a group of their own.
    unmoved = "the variant's precision rounds away the update of the weights of group 2: it changes"
    unclear = f"{unmoved} only 0 elements" if (family, toggles) == ("mamba2", HALF) else ""
    assert_right(step_sharded(configuration, "full", **toggles), "sharding", unclear=unclear)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["gradients", "full"])
def test_compiled_blocks_compute_with_shards(configuration, option):
    arm = step_sharded(configuration, option, compile="default")
    evidence = collect_evidence(arm)
    assert evidence["sharding"][0] == evidence["compile"][0] == "effective"
    assert isinstance(arm.divided.fully_shard, FullyShard)
    assert training_curve.check(arm, torch.float64).ok


@pytest.mark.slow
def test_the_runner_shards_when_the_toggle_is_switched_while_it_runs(configuration, runner: Driver):
    evidence = switch_on_and_off(runner, configuration, "sharding", "full", data_parallel="2")
    assert evidence.status == "effective", evidence.text
