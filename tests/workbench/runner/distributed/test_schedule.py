"""Stages that pass micro-batches on make the gradients of the whole batch, and hold few of them.

Here the stages are threads, whose link is as strict as a link can be: what is sent is taken over by
a neighbour that receives at that moment, or the sender waits.
"""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

import models
from models import LanguageModel
from models.parallel.pipeline_stages import Stage, StageOutput, stages
from workbench.runner.ranks.schedule import AFTER, BEFORE, Link, Schedule

WAIT_S = 20.0


class Rendezvous:
    """One direction between two neighbours, without a place where anything could lie."""

    def __init__(self) -> None:
        self._given: queue.Queue[Tensor] = queue.Queue()
        self._taken: queue.Queue[bool] = queue.Queue()

    def send(self, tensor: Tensor) -> None:
        self._given.put(tensor)
        self._taken.get(timeout=WAIT_S)

    def receive(self) -> Tensor:
        found = self._given.get(timeout=WAIT_S).clone()
        self._taken.put(True)
        return found


class Threads(Link):
    """Neighbours in threads: what goes both ways at a time does so in threads of its own."""

    def __init__(self, rank: int, lines: dict[tuple[int, int], Rendezvous]) -> None:
        self.rank, self._lines = rank, lines
        self.sent: list[int] = []

    def swap(self, sends: dict[int, Tensor], receives: list[int]) -> dict[int, Tensor]:
        self.sent += sends
        with ThreadPoolExecutor(4) as pool:
            going = [
                pool.submit(self._lines[self.rank, self.rank + to].send, one)
                for to, one in sends.items()
            ]
            coming = {
                each: pool.submit(self._lines[self.rank + each, self.rank].receive)
                for each in receives
            }
            for each in going:
                each.result()
            return {each: one.result() for each, one in coming.items()}


class Ranks:
    """A pipeline of so many stages of one small model in this process."""

    def __init__(self, family: str, ranks: int, **fields: object) -> None:
        self.family = models.FAMILIES[family]
        self.config = self.family.configure("tiny", {"n_layers": 4, **fields})
        self.model = self._made()
        self.stages = stages(len(self.model.blocks), ranks)
        self.parts = [self._part(stage) for stage in self.stages]
        ends = [(a, a + way) for a in range(ranks) for way in (BEFORE, AFTER)]
        self.lines = {pair: Rendezvous() for pair in ends}
        self.links = [Threads(rank, self.lines) for rank in range(ranks)]
        self.schedules: list[Schedule] = []

    def _made(self) -> LanguageModel:
        made = self.family.materialise(self.config, dtype=torch.float64, seed=3)
        return made.train()

    def _part(self, stage: Stage) -> LanguageModel:
        own = self._made()
        own.narrow(stage)
        return own

    def train(self, tokens: Tensor, targets: Tensor, count: int, scale: float = 1.0) -> Tensor:
        """The loss; every stage has its gradients then."""
        batch = tokens.chunk(count), targets.chunk(count)
        self.schedules = [
            Schedule(stage, rank, len(self.parts), self.links[rank], self.parts[rank].stage_loss)
            for rank, stage in enumerate(self.stages)
        ]
        with ThreadPoolExecutor(len(self.parts)) as pool:
            losses = [
                pool.submit(each.train, *batch, lambda loss: scale * loss)
                for each in self.schedules
            ]
            return sum(each.result(WAIT_S) for each in losses)

    def gradients(self) -> dict[str, Tensor]:
        """By the names of the whole; of what two stages have the sum."""
        found: dict[str, Tensor] = {}
        for stage, part in zip(self.stages, self.parts, strict=True):
            for name, each in part.named_parameters():
                whole = stage.whole_name(name)
                own = torch.zeros_like(each) if each.grad is None else each.grad
                found[whole] = found.get(whole, 0) + own
        return found


def batch(rows: int = 8) -> tuple[Tensor, Tensor]:
    drawn = torch.randint(256, (rows, 13), generator=torch.Generator().manual_seed(1))
    return drawn[:, :-1], drawn[:, 1:]


def off(ranks: Ranks, count: int, rows: int = 8, scale: float = 1.0) -> float:
    """How far the gradients are from those of the whole model and batch, relative, and the loss."""
    tokens, targets = batch(rows)
    loss = ranks.model.loss(tokens, targets)
    (scale * loss).backward()
    found = ranks.train(tokens, targets, count, scale)
    expected = {name: each.grad for name, each in ranks.model.named_parameters()}
    gradients = ranks.gradients()
    assert gradients.keys() == expected.keys()
    worst = max(
        float((gradients[n] - one).norm() / one.norm().clamp_min(1e-30))
        for n, one in expected.items()
    )
    return max(worst, float((found - loss.detach()).abs()))


CASES = [
    ("hydra", 2, {}),
    ("hydra", 4, {"tie_embeddings": False}),
    ("hydra", 3, {"mixture_of_depths": True}),
    ("mamba2", 4, {"attention_every": 2}),
    ("moe", 2, {"load_balance_weight": 0.0, "capacity_factor": 1.0}),
]


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize(("family", "ranks", "fields"), CASES)
def test_gradients_are_those_of_the_whole_batch(family, ranks, fields, count):
    assert off(Ranks(family, ranks, **fields), count) < 1e-9


def test_every_stage_scales_its_losses_alike():
    assert off(Ranks("hydra", 2, mixture_of_depths=True), 4, scale=1024.0) < 1e-9


@pytest.mark.parametrize(("count", "held"), [(8, [4, 3, 2, 1]), (3, [3, 3, 2, 1])])
def test_a_stage_holds_no_more_micro_batches_than_there_are_stages_from_it_on(count, held):
    pipeline = Ranks("hydra", 4)
    assert off(pipeline, count, rows=24) < 1e-9
    assert [each.turns.held for each in pipeline.schedules] == held
    assert {(each.turns.forwards, each.turns.backwards) for each in pipeline.schedules} == {
        (count, count)
    }
    assert [len(link.sent) for link in pipeline.links] == [count, 2 * count, 2 * count, count]


def blocks_left_out(pipeline: Ranks) -> None:
    pipeline.parts[1]._run_blocks = lambda x_BSE, *_: (x_BSE, None)


def gradient_not_sent(pipeline: Ranks) -> None:
    link = pipeline.links[1]
    swap = link.swap
    link.swap = lambda sends, receives: swap(
        {to: one.zero_() if to == BEFORE else one for to, one in sends.items()}, receives
    )


def not_divided_by_their_number(pipeline: Ranks) -> None:
    compute = pipeline.parts[-1].stage_loss
    pipeline.parts[-1].stage_loss = lambda x, t: StageOutput(None, 2 * compute(x, t).loss)


def streams_in_another_order(pipeline: Ranks) -> None:
    compute, seen = pipeline.parts[-1].stage_loss, []

    def late(x: Tensor, targets: Tensor) -> StageOutput:
        seen.append(targets)
        return compute(x, seen[max(0, len(seen) - 2)])

    pipeline.parts[-1].stage_loss = late


def losses_of_blocks_forgotten(pipeline: Ranks) -> None:
    compute = pipeline.parts[0].stage_loss
    pipeline.parts[0].stage_loss = lambda x, targets: compute(x, targets)._replace(loss=None)


FAULTS = [
    blocks_left_out,
    gradient_not_sent,
    not_divided_by_their_number,
    streams_in_another_order,
    losses_of_blocks_forgotten,
]


@pytest.mark.parametrize("plant", FAULTS)
def test_gradients_of_a_faulty_pipeline_are_not(plant):
    pipeline = Ranks("hydra", 2, mixture_of_depths=True)
    plant(pipeline)
    assert off(pipeline, 4) > 1e-3


def test_stages_are_contiguous_and_the_first_have_what_is_left_over():
    assert [list(stage.blocks) for stage in stages(7, 3)] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [(stage.first, stage.last) for stage in stages(7, 3)] == [
        (True, False), (False, False), (False, True)]  # fmt: skip
    with pytest.raises(ValueError, match="2 blocks for 3 ranks"):
        stages(2, 3)


@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_is_in_one_stage_and_a_tied_one_on_both_ends(tied):
    pipeline = Ranks("hydra", 3, tie_embeddings=tied)
    names = [
        stage.whole_name(name)
        for stage, part in zip(pipeline.stages, pipeline.parts, strict=True)
        for name in part.weights()
    ]
    assert set(names) == set(pipeline.model.weights())
    assert len(names) == len(set(names)) + tied
    assert names.count("embedding.weight") == 1 + tied


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_stage_that_is_called_alone_gives_what_has_the_shape_of_its_own(rank):
    pipeline = Ranks("hydra", 3)
    part, (tokens, targets) = pipeline.parts[rank], batch(2)
    rows, width = pipeline.config.rows, pipeline.config.dim
    assert part(tokens).shape == (2, 12, rows if rank == 2 else width)
    found = part.stage_loss(tokens, targets)
    assert (found.x is None) is (rank == 2) and (found.loss is None) is (rank < 2)
