"""Stages of a model: contiguous blocks, every parameter in the right ones, and their passes."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

import models
from models import LanguageModel
from models.parallel.pipeline_stages import Stage, chain, stages
from workbench.runner.distributed.counted_stage import CountsCalls


class Stages:
    """The stages of a small model, which share no weights."""

    def __init__(self, family: str, ranks: int, **fields: object) -> None:
        self.family = models.FAMILIES[family]
        self.config = self.family.configure("tiny", {"n_layers": 4, **fields})
        self.model = self._make()
        self.stages = stages([1.0] * len(self.model.blocks), ranks)
        self.parts = [self._part(stage) for stage in self.stages]

    def _make(self) -> LanguageModel:
        model = self.family.materialise(self.config, dtype=torch.float64, seed=3)
        return model.train()

    def _part(self, stage: Stage) -> LanguageModel:
        part = self._make()
        part.narrow(stage)
        return part


def batch(rows: int = 8) -> tuple[Tensor, Tensor]:
    drawn = torch.randint(256, (rows, 13), generator=torch.Generator().manual_seed(1))
    return drawn[:, :-1], drawn[:, 1:]


def test_stages_are_contiguous_and_the_first_have_what_is_left_over():
    made = stages([1.0] * 7, 3)
    assert [list(stage.blocks) for stage in made] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [(stage.first, stage.last) for stage in made] == [
        (True, False), (False, False), (False, True)]  # fmt: skip
    with pytest.raises(ValueError, match="needs at least 3 blocks, but the model has 2"):
        stages([1.0] * 2, 3)


@given(
    loads=st.lists(st.floats(0.1, 4.0), min_size=2, max_size=9),
    ranks=st.integers(2, 4),
    head=st.floats(0.0, 12.0),
)
def test_no_other_stages_give_the_busiest_rank_much_less_work(loads, ranks, head):
    assume(len(loads) >= ranks)

    def busiest(ends: tuple[int, ...]) -> float:
        work = [sum(loads[slice(*pair)]) for pair in itertools.pairwise((0, *ends, len(loads)))]
        return max(*work[:-1], work[-1] + head)

    made = stages(loads, ranks, head=head)
    ends = tuple(stage.blocks.stop for stage in made[:-1])
    best = min(map(busiest, itertools.combinations(range(1, len(loads)), ranks - 1)))
    assert busiest(ends) <= best + max(loads)


def test_the_last_stage_has_fewer_blocks_for_its_head():
    hydra = models.FAMILIES["hydra"]
    chain_of_base = chain(hydra, hydra.presets["base"])
    assert [len(stage.blocks) for stage in chain_of_base.stages(2)] == [8, 4]
    interleaved = chain_of_base.stages(2, 2)
    assert [len(stage.blocks) for stage in interleaved] == [8, 4]
    assert [stage.chunks for stage in interleaved] == [(range(4), range(4, 8)),
                                                       (range(3), range(3, 4))]  # fmt: skip


@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_is_in_one_stage_and_a_tied_one_on_both_ends(tied):
    pipeline = Stages("hydra", 3, tie_embeddings=tied)
    names = [
        stage.full_name(name)
        for stage, part in zip(pipeline.stages, pipeline.parts, strict=True)
        for name in part.weights()
    ]
    assert set(names) == set(pipeline.model.weights())
    assert len(names) == len(set(names)) + tied
    assert names.count("embedding.weight") == 1 + tied


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_stage_returns_the_stream_and_only_the_last_one_a_loss(rank):
    pipeline = Stages("hydra", 3)
    part, (tokens, targets) = pipeline.parts[rank], batch(2)
    rows, width = pipeline.config.rows, pipeline.config.dim
    assert part(tokens).shape == (2, 12, rows if rank == 2 else width)
    output = part.stage_loss(tokens, targets)
    assert (output.x is None) is (rank == 2) and (output.loss is None) is (rank < 2)


@pytest.mark.parametrize("family", ["hydra", "mamba2"])
def test_chunks_of_all_stages_in_turn_compute_the_full_model(family):
    pipeline = Stages(family, 2, n_layers=5)
    made = stages([1.0] * 5, 2, chunks=2)
    parts = [pipeline._part(stage) for stage in made]
    for model in (pipeline.model, *parts):
        model.set_fused_add_norm(family == "mamba2")
    x, targets = batch(2)
    expected = pipeline.model.loss(x, targets)
    for chunk in range(2):
        for stage, part in zip(made, parts, strict=True):
            part.passage = stage.passage(chunk)
            x, loss = part.stage_loss(x, targets)
    torch.testing.assert_close(loss, expected)


class Scale(torch.autograd.Function):
    """Multiply by weights in a Python function, as Triton kernels do."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


class LastStage(nn.Module):
    """A block, a scale and a head, whose weights come first, as a tied embedding's do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(4, 8, bias=False)
        self.block = nn.Linear(4, 4, bias=False)
        self.scales = nn.ParameterList([torch.randn(4)])

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.head(Scale.apply(self.block(x), self.scales[0])).square().mean()])


class TorchPasses:
    """The passes of ``PipelineStage`` for one micro-batch, without messages."""

    def __init__(self, module: nn.Module, x: Tensor) -> None:
        self._module, self._x, self._groups = module, x, []

    def forward_one_chunk(self, micro_batch: int) -> Tensor:
        return self._module(self._x)

    def backward_one_chunk(self, micro_batch: int, loss: Tensor, full_backward: bool) -> None:
        weights = self._module.parameters()
        _, self._groups = stage_backward_input([loss], None, [self._x], weights)

    def backward_weight_one_chunk(self, micro_batch: int) -> None:
        stage_backward_weight(self._module.parameters(), self._groups)


class HoldingStage(CountsCalls, TorchPasses):
    """A stage that holds the graph between the two backward passes."""


class Saved:
    """A tensor that a node of the graph saved; it ends with the graph."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def test_the_graph_lives_until_the_weights_pass_has_computed_all_gradients():
    module, x = LastStage(), torch.randn(3, 4, requires_grad=True)
    expected = torch.autograd.grad(module(x).sum(), list(module.parameters()))
    stage = HoldingStage(module, x.detach().requires_grad_())
    saved: list[weakref.ref[Saved]] = []

    def pack(tensor: Tensor) -> Saved:
        value = Saved(tensor)
        saved.append(weakref.ref(value))
        return value

    with saved_tensors_hooks(pack, lambda value: value.tensor):
        loss = stage.forward_one_chunk(0).sum()
    stage.backward_one_chunk(0, loss=loss, full_backward=False)
    assert loss.grad_fn is None, "torch released its reference"
    assert all(value() is not None for value in saved)
    stage.backward_weight_one_chunk(0)
    for parameter, gradient in zip(module.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    gc.collect()
    assert all(value() is None for value in saved)
