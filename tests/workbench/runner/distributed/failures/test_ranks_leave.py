"""Variants of several ranks that are left: failures on the way, and what continues afterwards."""

from __future__ import annotations

import gc
import weakref

import msgspec
import pytest
import torch
from built import stepped
from rank_checks import needs_cores, needs_gpus

from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.distributed import world
from workbench.runner.failures import RankError
from workbench.runner.variants.variant import Variant

DEVICES = [pytest.param("cpu", marks=needs_cores), pytest.param("cuda", marks=needs_gpus)]
pytestmark = [
    pytest.mark.usefixtures("close_ranks"),
    pytest.mark.parametrize("device", DEVICES),
]


@pytest.fixture(scope="module")
def configuration(small) -> Configuration:
    model = {**small.model, "n_kv_heads": 2}
    return msgspec.structs.replace(small, model=model, settings={"batch": 2, "sequence": 16})


@pytest.mark.slow
def test_an_arm_whose_ranks_could_not_be_compared_is_entered_anew(
    configuration, device, monkeypatch
):
    arm = stepped(configuration, device=device, tensor_parallel="2")

    def short(_: Variant) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")

    with monkeypatch.context() as patch:
        patch.setattr(arm.divided, "_compare", short)
        with pytest.raises(torch.OutOfMemoryError), arm.entered():
            arm.step()
    with arm.entered():
        assert torch.isfinite(arm.step())


@pytest.mark.slow
def test_ranks_that_could_not_be_compared_for_the_evidence_are_not_left_waiting(
    configuration, device, monkeypatch
):
    arm = stepped(configuration, device=device, tensor_parallel="2")
    compared = []

    def short(_: Variant) -> None:
        compared.append(world.current())
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")

    with monkeypatch.context() as patch, arm.entered():
        arm.step()
        patch.setattr(arm.divided, "_compare", short)
        with pytest.raises(torch.OutOfMemoryError):
            arm.divided.compare(arm)
        assert world.current() is None  # the other rank is inside of it, and cannot leave
    assert len(compared) == 1
    with arm.entered():
        assert torch.isfinite(arm.step())


def test_a_rank_that_ends_while_weights_are_stored_is_named(configuration, device, monkeypatch):
    arm = stepped(configuration, device=device, tensor_parallel="2")

    def gone(*_: object) -> None:
        peer = world.current().workers[0]
        peer.process.kill()
        peer.drain()
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(arm.divided.weights, "store", gone)
    with pytest.raises(world.RankError, match=r"rank 1.* was ended by SIGKILL"), arm.entered():
        arm.step()
    assert world.current() is None


def test_steps_that_another_adamw_has_counted_count_for_the_ranks_too(configuration, device):
    arms = VariantCache()
    plain = stepped(configuration, device=device, arms=arms)
    arm = stepped(configuration, device=device, arms=arms, tensor_parallel="2", adamw="fused")
    states, divided_states = (variant.full_trainer.optimizer.state for variant in (plain, arm))
    for state in divided_states.values():
        state["step"] = state["step"].clone()  # with a GPU, the other AdamW counts on the host
    with plain.entered():
        plain.step()
    with arm.entered():
        arm.step()
    with plain.entered():
        counts = {float(state["step"]) for state in states.values()}
    assert counts == {5.0}  # with the step that made the moments


@pytest.mark.parametrize("toggle", ["tensor_parallel", "pipeline_parallel"])
def test_nothing_of_an_arm_that_is_forgotten_waits_for_the_collector(configuration, device, toggle):
    arms = VariantCache()
    arm = stepped(configuration, device=device, arms=arms, **{toggle: "2"})
    references = [weakref.ref(arm.model), weakref.ref(next(arm.model.parameters()))]
    del arm
    gc.disable()
    try:
        arms.forget_all()
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()


def test_ranks_that_ended_do_not_end_the_process_group_of_those_after_them(device):
    first = world.of(2, torch.device(device))
    world.close()
    world.of(2, torch.device(device))
    first._leave()  # by a thread that was late
    assert torch.distributed.is_initialized()


def test_ranks_that_never_met_do_not_end_the_process_group_of_those_after_them(device, monkeypatch):
    met = []

    def fail(self):
        met.append(self)
        raise RankError("a rank did not start")

    world.close()  # of an earlier test
    with monkeypatch.context() as patch, pytest.raises(RankError, match="did not start"):
        patch.setattr(world.World, "await_answers", fail)
        world.of(2, torch.device(device))
    world.of(2, torch.device(device))
    met[0]._leave()  # by a thread that was late
    assert torch.distributed.is_initialized()
