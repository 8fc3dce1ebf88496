"""Arms of ranks that are left, whatever fails as they are, and what goes on from them."""

from __future__ import annotations

import gc
import os
import weakref

import msgspec
import pytest
import torch
from built import stepped

from sessions.model import Configuration
from workbench.runner.distributed import world
from workbench.runner.variants.variant import Arm, Arms

CPU = pytest.param(
    "cpu",
    marks=pytest.mark.skipif(
        len(os.sched_getaffinity(0)) < 2, reason="two ranks need two CPU cores"
    ),
)
GPU = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs"),
    ],
)
pytestmark = pytest.mark.parametrize("device", [CPU, GPU])


@pytest.fixture(scope="module", autouse=True)
def ended():
    """No peer outlives this module."""
    yield
    world.close()


@pytest.fixture(scope="module")
def asked(small) -> Configuration:
    model = {**small.model, "n_kv_heads": 2}
    return msgspec.structs.replace(small, model=model, settings={"batch": 2, "sequence": 16})


def test_an_arm_whose_ranks_could_not_be_compared_is_entered_anew(asked, device, monkeypatch):
    arm = stepped(asked, device=device, tensor_parallel="2")

    def short(_: Arm) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")

    with monkeypatch.context() as patch:
        patch.setattr(arm.divided, "_compare", short)
        with pytest.raises(torch.OutOfMemoryError), arm.entered():
            arm.step()
    with arm.entered():
        assert torch.isfinite(arm.step())


@pytest.mark.slow
def test_ranks_that_could_not_be_compared_for_the_evidence_are_not_left_waiting(
    asked, device, monkeypatch
):
    arm = stepped(asked, device=device, tensor_parallel="2")
    compared = []

    def short(_: Arm) -> None:
        compared.append(world.current())
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")

    with monkeypatch.context() as patch, arm.entered():
        arm.step()
        patch.setattr(arm.divided, "_compare", short)
        with pytest.raises(torch.OutOfMemoryError):
            arm.divided.compare(arm)
        assert world.current() is None  # the others are within it, and cannot leave
    assert len(compared) == 1
    with arm.entered():
        assert torch.isfinite(arm.step())


def test_a_rank_that_ends_as_shares_are_given_back_is_named(asked, device, monkeypatch):
    arm = stepped(asked, device=device, tensor_parallel="2")

    def gone(*_: object) -> None:
        peer = world.current().workers[0]
        peer.process.kill()
        peer.drain()
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(arm.divided.weights, "store", gone)
    with pytest.raises(world.RankError, match=r"rank 1.* was ended by SIGKILL"), arm.entered():
        arm.step()
    assert world.current() is None


def test_steps_that_another_adamw_has_counted_count_for_the_ranks_too(asked, device):
    arms = Arms()
    one = stepped(asked, device=device, arms=arms)
    arm = stepped(asked, device=device, arms=arms, tensor_parallel="2", adamw="fused")
    mine, theirs = (each.keeper.optimizer.state for each in (one, arm))
    for state in theirs.values():
        state["step"] = state["step"].clone()  # on a GPU: one on the host, the other there
    with one.entered():
        one.step()
    with arm.entered():
        arm.step()
    with one.entered():
        counts = {float(each["step"]) for each in mine.values()}
    assert counts == {5.0}  # with the step that made the moments


@pytest.mark.parametrize("toggle", ["tensor_parallel", "pipeline_parallel"])
def test_nothing_of_an_arm_that_is_forgotten_waits_for_the_collector(asked, device, toggle):
    arms = Arms()
    arm = stepped(asked, device=device, arms=arms, **{toggle: "2"})
    left = [weakref.ref(each) for each in (arm.model, next(arm.model.parameters()))]
    del arm
    gc.disable()
    try:
        arms.forget_all()
        assert [each() for each in left] == [None, None]
    finally:
        gc.enable()
