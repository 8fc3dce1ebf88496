"""The inputs of a user's model are those that its file draws or gives an example of."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from built import owned, stepped
from torch import nn

from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import resolve
from workbench.runner.data import make_batches
from workbench.runner.failures import Mistake
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.numerics import comparison
from workbench.runner.user_models.example_inputs import inputs_like
from workbench.runner.user_models.user_model import FAMILY, OwnModel

CPU = torch.device("cpu")
LAST = torch.channels_last
FILE = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8, dtype={dtype})

    def forward(self, x):
        {body}

def build():
    return Own(), lambda batch: {inputs}, lambda y, x: y.abs().square().mean()
"""


@pytest.fixture
def written(tmp_path):
    def write(inputs, body="return self.layer(x)", dtype="torch.float32"):
        path = tmp_path / "own.py"
        path.write_text(FILE.format(inputs=inputs, body=body, dtype=dtype))
        return owned(path)

    return write


def drawn(requested: Configuration):
    config = resolve(requested, CPU).config
    drawing = {"family": FAMILY, "config": config, "batch": 4, "sequence": 1, "seed": 0}
    return make_batches("synthetic", **drawing, device=CPU, dtype=torch.float32)


@pytest.mark.parametrize(
    ("inputs", "strides"),
    [
        ("torch.randn(batch, 3, 5, 7).to(memory_format=torch.channels_last)", (105, 1, 21, 3)),
        ("torch.randn(batch, 6, 5).transpose(1, 2)", (30, 1, 5)),
        ("torch.randn(5, batch, 6).transpose(0, 1)", (6, 24, 1)),
    ],
    ids=["channels last", "transposed", "the batch inside"],
)
def test_every_batch_has_the_memory_layout_that_was_drawn(written, inputs, strides):
    batches = drawn(written(inputs))
    values = []
    for _ in range(3):
        batches.advance()
        assert batches.inputs[0].stride() == strides
        values.append(batches.inputs[0].clone())
    assert not torch.equal(values[0], values[1])


@pytest.mark.parametrize(
    "example",
    [
        torch.randn(1, 3, 5, 7).to(memory_format=LAST),
        torch.randn(2, 6, 5).transpose(1, 2),
        torch.randint(9, (2, 6, 5)).transpose(1, 2),
    ],
    ids=["channels last", "transposed", "whole numbers"],
)
def test_inputs_like_an_example_have_its_memory_layout(example):
    inputs = inputs_like(example)(len(example))
    assert (inputs.shape, inputs.stride()) == (example.shape, example.stride())
    more = inputs_like(example)(4)
    assert more.shape == (4, *example.shape[1:]) and more.stride()[1:] == example.stride()[1:]


@dataclass(frozen=True)
class Pair:
    x: torch.Tensor
    inner: dict[str, torch.Tensor]
    name: str = "kept"


def test_an_example_may_be_any_structure_that_inputs_may_be():
    example = Pair(torch.zeros(1, 8), {"y": torch.zeros(1, 3)})
    drawn = inputs_like(example)(5)
    assert type(drawn) is Pair and drawn.name == "kept"
    assert drawn.x.shape == (5, 8) and drawn.inner["y"].shape == (5, 3) and drawn.x.any()
    assert example.x.shape == (1, 8)


def test_inputs_like_an_example_need_gradients_if_it_does():
    x, mask = inputs_like((torch.randn(2, 3, requires_grad=True), torch.ones(1, 3).expand(2, 3)))(4)
    assert x.requires_grad and x.is_leaf
    assert not mask.requires_grad and mask.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.uint16, torch.int32])
def test_whole_numbers_of_any_dtype_are_drawn_from_the_range_of_the_example(dtype):
    inputs = inputs_like(torch.tensor([[0, 1]]).to(dtype))(64)
    assert inputs.dtype == dtype and set(inputs.long().flatten().tolist()) == {0, 1}
    assert inputs_like(torch.zeros(0, 3, dtype=dtype))(2).shape == (2, 3)


def test_a_sparse_example_is_a_mistake_in_one_sentence():
    with pytest.raises(Mistake, match=r"layout torch\.sparse_coo.*return make_inputs\(batch\)"):
        inputs_like((torch.eye(3).to_sparse(), torch.randn(3, 8)))


def test_batches_of_several_shapes_stay_as_they_were_drawn(written):
    lengths = "torch.ones(batch, int(torch.randint(1, 9, ())), 8)"
    requested = written(lengths, "return self.layer(x.mul_(2))")
    variant = VariantCache().get(resolve(requested, CPU), PhaseTracker(lambda phase: None))
    assert all(bool((x == 1).all()) for (x,) in variant.batches.loose)


def test_complex_inputs_are_checked_in_double_precision(written):
    requested = written("torch.randn(batch, 8, dtype=torch.cfloat)", dtype="torch.cfloat")
    situation = resolve(requested, CPU)
    variant = VariantCache().get(situation, PhaseTracker(lambda phase: None))
    result = comparison.check(variant, situation)
    assert result.ok and result.reference == "float64", result.text


class Keywords(nn.Module):
    def forward(self, x, *, scale=1, **more):
        return x * scale, more


class Anything(nn.Module):
    def forward(self, **batch):
        return batch["x"]


class Batch(nn.Module):
    def forward(self, batch, **more):
        return batch["x"]


@pytest.mark.parametrize("kind", [Anything, Batch])
def test_a_dict_is_passed_as_the_arguments_that_the_model_takes(kind):
    assert OwnModel(kind(), None)({"x": 3, "mask": 4}) == 3


def test_a_dict_may_hold_keywords_that_only_kwargs_take():
    assert OwnModel(Keywords(), None)({"x": 3, "scale": 2, "mask": 4}) == (6, {"mask": 4})


JAGGED = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
    def forward(self, x):
        return self.a(x).values()

def build():
    def draw(n):
        rows = [torch.randn(2 + row, 8) for row in range(n)]
        return torch.nested.nested_tensor(rows, layout=torch.jagged)
    return Own(), draw, lambda y, x: y.float().square().mean()
"""


def test_jagged_inputs_run_with_their_flops_unknown(tmp_path):
    """Torch's counter of FLOPs fails for them."""
    path = tmp_path / "own.py"
    path.write_text(JAGGED)
    arm = stepped(owned(path, settings={"batch": 4}))
    result = comparison.check(arm, arm.situation)
    assert result.ok is True, result.text
    assert "model_flops" not in arm.record.facts


@pytest.mark.parametrize(
    "inputs",
    [
        "(torch.randn(batch, 3, 8), torch.randn(2, batch, 8))",
        "(torch.randn(batch, 3, 8), torch.randn(4, batch, 8))",  # as many layers as rows
        "(torch.randn(batch, 3, 8), torch.zeros(4, 4))",
    ],
)
def test_ranks_split_only_inputs_whose_first_dimension_is_the_batch(written, inputs):
    """The state of a recurrent layer has its layers first."""
    with pytest.raises(Mistake, match="let make_inputs return such tensors, and let the module"):
        drawn(written(inputs)).part(0, 2)


@pytest.mark.parametrize("inputs", ["torch.randn(batch, 8)", "torch.randn(4, 8)[:batch]"])
def test_ranks_split_rows_also_if_no_larger_batch_can_be_drawn(written, inputs):
    inputs = f"({inputs} if batch == 4 else {{}}['no other size'],)"
    (rows,) = drawn(written(inputs)).part(1, 2).inputs
    assert rows.shape == (2, 8)
