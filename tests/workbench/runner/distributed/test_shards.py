"""Ranks that keep shares of moments, gradients and weights train as ranks that keep all of them."""

from __future__ import annotations

import math
import os

import msgspec
import pytest
import torch
import torch.distributed as dist
from built import blocked, found, left_by_a_step, step_without_peer, stepped
from runner_driver import Driver
from test_ranks import CPU, needs_cores, switched
from torch import nn

from models import FAMILIES, Sharding
from sessions.model import Configuration
from workbench import protocol
from workbench.runner.config.resolve import footprint, resolve
from workbench.runner.distributed import world
from workbench.runner.experiments import checks
from workbench.runner.numerics import training_curve
from workbench.runner.profiling import roles
from workbench.runner.ranks import shards as shards_module
from workbench.runner.ranks.shards import STAGES, Shards
from workbench.runner.ranks.units import units_of
from workbench.runner.suggested_fixes import cure
from workbench.runner.variants.training import Weights
from workbench.runner.variants.variant import Arm, Arms

pytestmark = needs_cores


@pytest.fixture
def asked(small) -> Configuration:
    return msgspec.structs.replace(small, settings={"batch": 4, "sequence": 16})


def divided(asked: Configuration, stage: str, arms: Arms | None = None, **toggles: str) -> Arm:
    return stepped(asked, arms=arms or Arms(), data_parallel="2", sharding=stage, **toggles)


def trained(arm: Arm, steps: int = 3) -> list[float]:
    """Losses of so many steps, each of another batch."""
    losses = []
    with arm.entered():
        for _ in range(steps):
            arm.batches.advance()
            losses.append(float(arm.step()))
    return losses


def state(arm: Arm) -> dict[str, torch.Tensor]:
    """Copies of weights, moments and step counts."""
    named = arm.model.weights().items()
    found = {name: each.detach().clone() for name, each in named}
    for name, each in named:
        moments = arm.trainer.optimizer.state[each].items()
        found |= {f"{name} {kind}": value.clone() for kind, value in moments}
    return found


def differing(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


@pytest.mark.parametrize("stage", STAGES)
def test_weights_and_moments_are_those_of_whole_ranks_to_the_last_bit(asked, stage):
    whole, shared = divided(asked, "off"), divided(asked, stage)
    assert trained(shared) == trained(whole)
    assert differing(state(shared), state(whole)) == []
    status, text = found(shared)["sharding"]
    assert status == "effective", text
    assert "a rank holds 123 KiB of 245 KiB of moments" in text
    assert "alike to the last bit" in text
    units = {"optimizer": 1, "gradients": 1, "full": 3}[stage]
    assert f"a step has {units} reduce-scatter" in text


def test_other_arms_go_on_from_what_the_shares_have_become(asked):
    ends = []
    for stage in ("off", "full"):
        arms = Arms()
        plain = stepped(asked, arms=arms)
        shared = divided(asked, stage, arms)
        losses = [*trained(shared, 2), *trained(plain, 2), *trained(shared, 2)]
        ends.append((losses, state(plain)))
    assert ends[0][0] == ends[1][0]
    assert differing(ends[0][1], ends[1][1]) == []


def test_looking_for_evidence_between_two_steps_changes_neither(asked):
    whole, shared = divided(asked, "off"), divided(asked, "full")
    losses = []
    with shared.entered():
        for _ in range(3):
            shared.batches.advance()
            losses.append(float(shared.step()))
            shared.evidence = None
            assert found(shared)["sharding"][0] == "effective"
            assert all(each.untyped_storage().nbytes() for each in shared.model.parameters())
    assert losses == trained(whole)
    assert differing(state(shared), state(whole)) == []


def test_shares_that_no_step_was_made_with_are_given_back_as_they_were(asked):
    arm = divided(asked, "full")
    before = state(arm)
    with arm.entered():
        arm.divided.spread()
        assert arm.trainer.shards.spread
    assert differing(state(arm), before) == []


def test_one_core_says_why_nothing_can_be_shared_out(asked, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    told = blocked(asked)["sharding"]
    assert {one.reason for one in told.values()} == {
        "needs 2 CPU cores, and this machine has 1 CPU core"
    }


@pytest.mark.parametrize("stage", STAGES)
def test_the_whole_is_not_in_memory_while_it_steps(asked, stage):
    arm = divided(asked, stage)
    whole = [
        v for one in arm.trainer.optimizer.state.values() for k, v in one.items() if k != "step"
    ]
    parameters = list(arm.model.parameters())
    with arm.entered():
        assert all(each.untyped_storage().nbytes() for each in whole)
        for _ in range(2):
            arm.step()
        assert not any(each.untyped_storage().nbytes() for each in whole)
        assert not any(each.untyped_storage().nbytes() for each in arm.trainer.shards.homes)
        freed = [each for each in parameters if not each.untyped_storage().nbytes()]
        matrices = [
            each for block in arm.model.blocks for each in block.parameters() if each.ndim > 1
        ]
        assert {id(each) for each in freed} == {id(e) for e in matrices if stage == "full"}
        held = {role: 0 for role, _ in roles.known(arm, CPU).blocks.values()}
        for role, size in roles.known(arm, CPU).blocks.values():
            held[role] += size
    weights = sum(each.nbytes for each in parameters)
    assert held["optimizer"] == pytest.approx(weights, rel=0.02)  # two moments, half of each
    assert held["gradients"] == pytest.approx(
        weights * (1.5 if stage == "optimizer" else 0.5), 0.02
    )
    assert (held["parameters"] < 0.75 * weights + 40_000) == (stage == "full"), held
    assert all(each.untyped_storage().nbytes() for each in (*whole, *parameters))


def test_what_captured_graphs_read_stays_where_it_is_and_counts_as_others(asked):
    arms = Arms()
    arm = divided(asked, "full", arms)
    with arm.entered():
        arm.step()
        assert arms.others_bytes(arm) == 4 * len(list(arm.model.parameters()))  # step counts
    arm.sets._captured.add(next(iter(arm.sets._plain)))
    before = [each.data_ptr() for each in arm.model.parameters()]
    arms._others.clear()
    with arm.entered():
        arm.step()
        own = 3 * sum(each.nbytes for each in arm.model.parameters())
        assert arms.others_bytes(arm) >= own
    assert [each.data_ptr() for each in arm.model.parameters()] == before
    assert "captured graphs of others" in found(arm)["sharding"][1]


def keep_what_others_had(monkeypatch) -> None:
    """Rank 0 does not take in the weights that the other rank has updated."""
    gathered = Shards.gather

    def gather(self):
        unit = self._units[0]
        before = unit.flat[unit.length :].clone()
        gathered(self)
        unit.flat[unit.length :] = before

    monkeypatch.setattr(Shards, "gather", gather)


def keep_own_gradients(monkeypatch) -> None:
    """Rank 0 updates its share by its own batch."""
    scattered, averaged = dist.reduce_scatter_tensor, Shards.backward
    own: list[tuple[torch.Tensor, torch.Tensor]] = []

    def scatter(output, whole, **more):
        own.append((output, 2 * whole[: len(output)]))
        return scattered(output, whole, **more)

    def backward(self, loss):
        averaged(self, loss)
        while own:
            output, alone = own.pop()
            output.copy_(alone)

    monkeypatch.setattr(shards_module.dist, "reduce_scatter_tensor", scatter)
    monkeypatch.setattr(Shards, "backward", backward)


def forget_moments(monkeypatch) -> None:
    """Rank 0 begins its moments anew in each step."""
    agreed = Shards.backward

    def backward(self, loss):
        agreed(self, loss)
        for unit in self._units:
            for moment in unit.moments.values():
                moment.zero_()

    monkeypatch.setattr(Shards, "backward", backward)


def leave_a_share_out(monkeypatch) -> None:
    """Rank 0 computes blocks with its own share of their weights, and nothing of the other's."""
    fetched = Shards._fetch

    def fetch(self, unit):
        fetched(self, unit)
        if unit.passing:
            unit.flat[unit.length :] = 0

    monkeypatch.setattr(Shards, "_fetch", fetch)


@pytest.mark.parametrize(
    ("plant", "stage", "parts"),
    [
        (None, "gradients", False),
        (keep_what_others_had, "gradients", True),
        (keep_own_gradients, "gradients", False),
        (forget_moments, "gradients", False),
        (leave_a_share_out, "full", True),
    ],
)
def test_the_check_of_training_sees_a_share_that_goes_its_own_way(
    asked, plant, stage, parts, monkeypatch
):
    arm = divided(asked, stage)
    if plant is not None:
        plant(monkeypatch)
    curve = training_curve.check(arm, torch.float64)
    assert curve.ok == (plant is None), curve.text
    status, text = found(arm)["sharding"]
    assert (status == "no effect") == ("no longer alike" in text) == parts, text


@pytest.mark.parametrize("here", [1.0, math.inf, math.nan])
@pytest.mark.parametrize("there", [0.0, math.nan])
def test_what_is_not_finite_on_one_rank_is_so_on_all(here, there, monkeypatch):
    weights = [nn.Parameter(torch.randn(40)), nn.Parameter(torch.randn(2, 3))]
    trainer = Weights({"a": weights[0], "b": weights[1]}).trainer({}, scales_loss=False)
    shards = Shards(trainer.optimizer, [], "gradients", rank=0, ranks=2)
    shards.take()
    gradients = [each.grad for each in shards.optimizer.param_groups[0]["params"]]
    gradients[-1][3] = here
    before, told = [each.clone() for each in gradients], []

    def sum_up(own):
        told.append(float(own))
        own += there

    monkeypatch.setattr(shards_module.dist, "all_reduce", sum_up)
    shards.agree()
    assert (told == [0.0]) == math.isfinite(here)
    if math.isfinite(here) and math.isfinite(there):
        assert all(map(torch.equal, gradients, before))
    else:
        assert gradients[0].isnan().any()


def test_a_rank_that_no_number_is_left_for_steps_and_agrees_too(monkeypatch):
    weight = nn.Parameter(torch.randn(3))
    trainer = Weights({"a": weight}).trainer({}, scales_loss=False)
    before = weight.detach().clone()
    shards = Shards(trainer.optimizer, [], "optimizer", rank=7, ranks=8)
    shards.take()
    monkeypatch.setattr(shards_module.dist, "all_reduce", lambda own: own.fill_(math.nan))
    shards.agree()
    ((nobody,),) = (group["params"] for group in shards.optimizer.param_groups)
    assert nobody.grad.isnan().all(), "it skips what the others skip"
    begun = float(shards.optimizer.state[nobody]["step"])
    shards.optimizer.step()
    assert float(shards.optimizer.state[nobody]["step"]) == begun + 1
    assert torch.equal(weight, before)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_every_number_of_any_size_is_in_one_ranks_share(ranks):
    table = nn.Parameter(torch.randn(13, 7))
    block = nn.Module()
    block.matrix = nn.Parameter(torch.randn(5, 11))
    block.narrow = nn.Parameter(torch.randn(3, 3, dtype=torch.float64))
    block.vector, block.table = nn.Parameter(torch.randn(9)), table
    other = nn.Module()
    other.table = table  # of two blocks, and so of none
    parameters = [*block.parameters(), nn.Parameter(torch.tensor(3.0))]
    optimizer = torch.optim.AdamW(parameters)
    units = list(units_of(optimizer, [block, other], ranks))
    assert sorted(len(unit.parameters) for unit in units if unit.passing) == [1, 1]
    assert {id(p) for unit in units for p in unit.parameters} == set(map(id, parameters))
    for unit in units:
        flat = unit.parameters[0].detach().new_full((ranks * unit.length,), math.nan)
        for view, parameter in zip(unit.views(flat), unit.parameters, strict=True):
            assert view.isnan().all(), "no number lies in two places"
            view.copy_(parameter.detach())
        starts = [start * flat.itemsize for start in (*unit.starts, unit.length)]
        assert not any(start % 128 for start in starts)
        for view, parameter in zip(unit.views(flat), unit.parameters, strict=True):
            assert torch.equal(view, parameter)


@pytest.mark.parametrize(
    ("toggles", "option", "reason", "fix"),
    [
        ({}, "optimizer", "no ranks to share it out to", {"data_parallel": "2"}),
        ({"compile": "default"}, "full", "does not see the weights", {"sharding": "gradients"}),
        (
            {"activation_offload": "on"},
            "full",
            "gathered weights with it",
            {"activation_offload": "off", "checkpointing": "full"},
        ),
    ],
)
def test_what_cannot_be_shared_out_says_why_and_what_to_set(asked, toggles, option, reason, fix):
    if "data_parallel" not in fix:
        toggles = {"data_parallel": "2", **toggles}
        assert "gradients" not in blocked(asked, **toggles).get("sharding", {})
    found = blocked(asked, **toggles)["sharding"][option]
    assert reason in found.reason and found.set == fix
    assert "acts on the backward pass" in blocked(asked, "forward")["sharding"][option].reason


def test_the_estimate_divides_what_is_divided(asked):
    base = msgspec.structs.replace(asked, preset="base", model={}, workload="train")

    def estimated(stage):
        toggles = {"data_parallel": "2", "sharding": stage}
        return footprint(resolve(msgspec.structs.replace(base, toggles=toggles), CPU))

    whole, moments, gradients, full = map(estimated, ("off", *STAGES))
    assert moments.optimizer == gradients.optimizer == full.optimizer == whole.optimizer // 2
    assert gradients.gradients == full.gradients < moments.gradients
    assert full.weights < gradients.weights == whole.weights
    assert full.total < gradients.total < whole.total
    step = {"workload": "train", "batch": 1, "sequence": 16}
    config = FAMILIES["hydra"].presets["base"]
    eighth = Sharding(ranks=8, shares_gradients=True, shares_weights=True)
    less = FAMILIES["hydra"].footprint(config, sharding=eighth, **step)
    assert less.weights < full.weights and less.optimizer == whole.optimizer // 8


def test_shares_are_offered_first_where_ranks_run_out_of_memory(asked):
    failure = protocol.Failure(kind="out-of-memory", sentence="", fix="")
    toggles = {"data_parallel": "2"}
    offered = []
    for _ in range(2):
        one = msgspec.structs.replace(asked, workload="train", toggles=toggles)
        offered.append(cure(failure, one, CPU).set)
        toggles = toggles | offered[-1]
    assert offered == [{"sharding": "full"}, {"checkpointing": "full"}]
    compiled = {"data_parallel": "2", "compile": "default"}
    one = msgspec.structs.replace(asked, workload="train", toggles=compiled)
    assert cure(failure, one, CPU).set == {"sharding": "gradients"}


def test_steps_leave_nothing_behind_and_take_what_was_estimated(asked):
    arm = divided(asked, "full")
    steady = checks.steady_memory(arm, 6)
    assert "nothing is left behind" in steady.evidence
    with arm.entered():  # nor does what threads of collectives free seem to be left
        checks.step(arm, 2)
        assert {left_by_a_step(arm) for _ in range(8)} == {0}
    step, kept = arm.step, []
    arm.step = lambda: kept.append(torch.zeros(4)) or step()
    steady = checks.steady_memory(arm, 6)
    assert steady.status == "fail" and "each step leaves 16 bytes behind" in steady.evidence


# The last, as others would need a new peer.
def test_a_rank_that_ends_takes_no_weights_with_it(asked):
    arm = divided(asked, "full")
    before = state(arm)
    with pytest.raises(world.RankError, match=r"rank 1.* was ended by SIGKILL"), arm.entered():
        arm.step()
        step_without_peer(arm)
    assert differing(state(arm), before) == []


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "toggles",
    [{}, {"checkpointing": "full"}, {"checkpointing": "operators"}, {"precision": "bf16"}],
    ids=lambda each: next(iter(each.values()), "plain"),
)
def test_every_family_trains_on_gathered_weights_as_on_whole_ones(family, toggles):
    settings = {"batch": 4, "sequence": 32}
    asked = Configuration(family=family, preset="tiny", settings=settings, workload="train")
    if family == "mamba2":
        toggles = toggles | {"fused_add_norm": "torch"}
    whole, shared = (divided(asked, stage, **toggles) for stage in ("off", "full"))
    assert trained(shared) == trained(whole)
    assert differing(state(shared), state(whole)) == []


@pytest.mark.slow
def test_compiled_steps_keep_shares_of_moments_and_gradients(asked):
    whole = divided(asked, "off", compile="default")
    shared = divided(asked, "gradients", compile="default")
    assert trained(shared) == trained(whole)
    assert found(shared)["sharding"][0] == "effective"
    assert training_curve.check(shared, torch.float64).ok


@pytest.mark.slow
def test_the_runner_shares_out_when_the_toggle_is_switched_while_it_runs(runner: Driver):
    of_shares = switched(runner, "sharding", "full", data_parallel="2")
    assert of_shares.status == "effective", of_shares.text
