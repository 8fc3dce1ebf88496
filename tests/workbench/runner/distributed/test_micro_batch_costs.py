"""A micro-batch costs the host little beside its stage's operators, and weights are cast once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import torch
from built import stepped
from test_ranks import needs_cores
from test_schedule import batch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import models
from models import LanguageModel
from models.parallel.pipeline_stages import Stage, StageOutput
from workbench.runner.config import resolve
from workbench.runner.ranks.schedule import Link, Schedule
from workbench.runner.variants.variant import Arm, Arms

AMP = {"precision": "amp_bf16", "adamw": "fused"}


class Operators(TorchDispatchMode):
    """Counts the operators that run, and for each parameter how often it is cast."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.casts: Counter[int] = Counter()  # by address

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[str(func)] += 1
        if func is torch.ops.aten._to_copy.default and isinstance(args[0], nn.Parameter):
            self.casts[args[0].data_ptr()] += 1
        return func(*args, **(kwargs or {}))


def counted(call: Callable[[], object]) -> Operators:
    with Operators() as found:
        call()
    return found


class Alone(Link):
    """Of the only stage, which has nobody to tell."""

    def swap(self, sends: dict[int, Tensor], receives: list[int]) -> dict[int, Tensor]:
        assert not sends and not receives
        return {}


class Whole:
    """A model of one stage, in mixed precision."""

    def __init__(self, checkpointing: str = "none", dtype: torch.dtype = torch.bfloat16) -> None:
        family = models.FAMILIES["hydra"]
        config = family.configure("tiny", {"n_layers": 2})
        self.model: LanguageModel = family.materialise(config, dtype=torch.float32, seed=3)
        self.model.train().set_checkpointing(checkpointing)
        self._dtype = dtype
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def compute(self, x: Tensor, targets: Tensor) -> StageOutput:
        with torch.autocast("cpu", self._dtype):
            return self.model.stage_loss(x, targets)

    def train(self, count: int) -> Tensor:
        """The loss of 8 rows in so many micro-batches, its gradients made anew."""
        self.model.zero_grad()
        tokens, targets = (list(each.chunk(count)) for each in batch())
        stage = Stage(range(2))
        schedule = Schedule(stage, 0, 1, Alone(), self.compute)
        return schedule.train(tokens, targets, self.scaler.scale)

    def apart(self, count: int) -> Tensor:
        """The same by accumulating gradients of calls that share nothing."""
        self.model.zero_grad()
        losses = []
        for one in zip(*(each.chunk(count) for each in batch()), strict=True):
            loss = self.compute(*one).loss
            self.scaler.scale(loss / count).backward()
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def gradients(self) -> dict[str, Tensor]:
        return {name: each.grad.clone() for name, each in self.model.named_parameters()}


def test_a_micro_batch_adds_no_operators_but_those_of_its_stage():
    whole = Whole()
    whole.apart(1)

    def again() -> None:  # gradients are there to be added to, as after a first micro-batch
        whole.compute(*batch()).loss.backward(torch.ones(()))

    own = counted(again)
    own_calls = own.calls.total() - own.casts.total()
    step = [counted(lambda c=count: whole.train(c)).calls.total() for count in (4, 8)]
    assert (step[1] - step[0]) / 4 <= own_calls + 1  # its loss, detached


@pytest.mark.parametrize("checkpointing", ["none", "full", "operators"])
def test_weights_are_cast_once_a_step_and_anew_in_the_next(checkpointing):
    whole = Whole(checkpointing)
    casts = counted(lambda: whole.train(8)).casts
    assert len(casts) >= 8 and set(casts.values()) == {1}
    with torch.no_grad():
        for each in whole.model.parameters():
            each.mul_(0.5)
    assert counted(lambda: whole.train(8)).casts == casts


@pytest.mark.parametrize("checkpointing", ["none", "full", "operators"])
def test_gradients_are_the_same_where_backward_passes_have_a_thread_as_on_a_gpu(
    checkpointing, monkeypatch
):
    """There autocast is in no region: what is computed again forgets the casts of the other's."""
    whole = Whole(checkpointing)
    whole.train(8)
    expected = whole.gradients()
    backward, cleared = torch.autograd.backward, []
    clear = torch.clear_autocast_cache
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: (cleared.append(1), clear()))
    with ThreadPoolExecutor(1) as pool:
        apart = lambda *given: pool.submit(backward, *given).result()  # noqa: E731
        monkeypatch.setattr(torch.autograd, "backward", apart)
        whole.train(8)
    assert len(cleared) == (1 if checkpointing == "none" else 1 + 8 * 2)
    for name, gradient in whole.gradients().items():
        assert torch.equal(gradient, expected[name]), name


@pytest.mark.parametrize("checkpointing", ["none", "full", "selective", "operators"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_are_to_the_last_bit_those_of_weights_cast_anew_and_losses_scaled_one_by_one(
    checkpointing, dtype
):
    whole = Whole(checkpointing, dtype)
    loss, expected = whole.apart(8), whole.gradients()
    found = whole.train(8)
    torch.testing.assert_close(found, loss)
    for name, each in whole.gradients().items():
        assert torch.equal(each, expected[name]), name


@needs_cores
def test_a_micro_batch_of_a_rank_adds_what_it_sends_and_receives(small):
    asked = msgspec.structs.replace(small, settings={"batch": 4, "sequence": 16})
    arms, step = Arms(), []
    for count in ("2", "4"):
        arm = stepped(asked, arms=arms, pipeline_parallel="2", micro_batches=count, **AMP)
        with arm.entered():
            step.append(counted(arm.step))
    own = of_the_stage(arm)
    more = Counter(step[1].calls)
    more.subtract(step[0].calls)
    # The stream to send, what arrives, and where; the casts of weights are not the micro-batch's.
    assert more["c10d.send.default"] == more["c10d.recv_.default"] == 2
    assert more.total() / 2 <= own + 4
    assert set(step[1].casts.values()) == {1}


def of_the_stage(arm: Arm) -> int:
    """Operators of one micro-batch of rank 0's stage, beside the casts of its weights."""
    tokens, targets = (each[:1] for each in arm.batches.inputs + arm.batches.targets)

    def one() -> None:
        found = arm.compute(tokens, targets)
        torch.autograd.backward(found.x, torch.ones_like(found.x))

    with arm.entered():
        one()
        found = counted(one)
        arm.weights.drop_gradients()
    return found.calls.total() - found.casts.total() - 1  # the ones


@pytest.mark.parametrize(("precision", "bytes_each"), [("fp32", 0), ("amp_bf16", 2)])
def test_copies_of_weights_are_estimated_once_for_all_micro_batches_held(
    small, precision, bytes_each
):
    fields = {**small.model, "n_layers": 8}

    def activations(batch: int) -> int:
        toggles = {"pipeline_parallel": "2", "micro_batches": "2", "precision": precision}
        settings = {"batch": batch, "sequence": 16}
        asked = msgspec.structs.replace(
            small, model=fields, workload="train", settings=settings, toggles=toggles
        )
        return resolve.footprint(resolve.resolve(asked, torch.device("cpu"))).activations

    family = models.FAMILIES["hydra"]
    stage = family.build(family.configure("tiny", fields)).blocks[:4]
    numbers = sum(each.weight.numel() for each in stage.modules() if isinstance(each, nn.Linear))
    # The first stage, with two micro-batches: but for the copies as many bytes for twice the rows.
    assert 2 * activations(2) - activations(4) == bytes_each * numbers
