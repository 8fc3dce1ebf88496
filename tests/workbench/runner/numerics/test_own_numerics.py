"""The check of a model of one's own: right is not red, and what cannot be compared is not green."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import resolve
from workbench.runner.failures import Mistake
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.numerics import comparison, distances, training_curve
from workbench.runner.numerics.nan_watch import FiniteWatch
from workbench.runner.numerics.outputs import measurable
from workbench.runner.structures import map_tensors, tensors

CPU = torch.device("cpu")
FILE = """
import dataclasses
import torch
from torch import nn
from torch.nn import functional as F

@dataclasses.dataclass
class Found:
    y: object
    n: int = 3

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 16)
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("mask", torch.arange(16) % 2 == 0)

    def forward(self, x):
        {before}
        y = self.b(F.gelu(self.a(x)))
        return {output}

def build():
    return Own(), lambda batch: torch.randn(batch, 16), lambda output, x: {loss}
"""
SQUARE = "sum(y.float().square().mean() for y in [output{}])"


@pytest.fixture
def build(tmp_path):
    def build(workload="forward", before="pass", output="y", part="", loss="", **toggles):
        path = tmp_path / "mine.py"
        loss = loss or SQUARE.format(part)
        path.write_text(FILE.format(before=before, output=output, loss=loss))
        configuration = Configuration(
            family="own", preset="file", workload=workload, model={"source": str(path)},
            toggles=toggles,
        )  # fmt: skip
        situation = resolve(configuration, CPU)
        return VariantCache().get(situation, PhaseTracker(lambda phase: None)), situation

    return build


LEARNED = """
import torch
from torch import nn
from torch.nn import functional as F

class Learned(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(30 + 18 * torch.eye(64))

    def forward(self, x):
        return self.logits[x]

def build():
    batches = lambda batch: torch.arange(64).repeat(batch)
    return Learned(), batches, lambda logits, x: F.cross_entropy(logits, x)
"""


@pytest.fixture
def build_learned(tmp_path):
    """Build a model that has learned its batches: a loss of 1e-6 of logits of 48."""
    path = tmp_path / "learned.py"
    path.write_text(LEARNED)
    configuration = Configuration(
        family="own", preset="file", workload="train", model={"source": str(path)}
    )
    situation = resolve(configuration, CPU)
    return VariantCache().get(situation, PhaseTracker(lambda phase: None)), situation


@pytest.mark.parametrize(("offset", "right"), [(0.0, True), (2e-5, False)])
def test_a_small_loss_of_large_logits_may_be_off_by_the_rounding_of_its_log_sum_and_not_by_more(
    build_learned, monkeypatch, offset, right
):
    def from_log_sum(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        hit = logits.gather(1, target[:, None])
        return (logits.logsumexp(1, keepdim=True) - hit).mean() + offset

    losses_of = training_curve._variant_losses

    def otherwise(*given):
        with monkeypatch.context() as patched:
            patched.setattr(nn.functional, "cross_entropy", from_log_sum)
            return losses_of(*given)

    monkeypatch.setattr(training_curve, "_variant_losses", otherwise)
    result = comparison.check(*build_learned)
    assert result.ok is right, result.text
    assert result.curve_difference > 5e-7


STRUCTURES = {
    "dict": ("{'logits': y, 'ids': y.argmax(-1)}", "['logits']"),
    "tuple": ("(x.mean(), [y])", "[1][0]"),
    "dataclass": ("Found(y)", ".y"),
    "one number": ("y.square().mean()", ""),
}


@pytest.mark.parametrize("workload", ["forward", "train"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_outputs_of_any_structure_are_compared(build, workload, structure):
    output, part = STRUCTURES[structure]
    result = comparison.check(*build(workload, output=output, part=part))
    assert result.ok, result.text
    assert result.relative_error < 1e-6


@pytest.mark.parametrize("index", [0, 1])
def test_one_wrong_output_of_several_is_red_and_named(build, index):
    arm, situation = build(output="{'big': 1e3 * y, 'small': 1e-3 * y.mean(-1)}")
    step = arm.step

    def wrong():
        outputs = step()
        name = list(outputs)[index]
        return outputs | {name: outputs[name] * 1.001}

    arm.step = wrong
    result = comparison.check(arm, situation)
    assert result.ok is False and f"in output {index + 1} of 2" in result.text


def test_whole_numbers_alone_are_not_checked(build):
    result = comparison.check(*build(output="y.argmax(-1)"))
    assert result.ok is None and "no floating-point numbers" in result.text


def test_an_imaginary_part_counts(build):
    arm, situation = build(output="torch.complex(y, y)")
    assert comparison.check(arm, situation).ok
    step = arm.step
    arm.step = lambda: step().conj()
    assert comparison.check(arm, situation).ok is False


def test_infinities_of_a_mask_are_right_where_they_are_expected_and_red_elsewhere(build):
    arm, situation = build(output="y.masked_fill(self.mask, float('-inf'))")
    result = comparison.check(arm, situation)
    assert result.ok and result.relative_error < 1e-6, result.text
    step = arm.step
    for change in (lambda y: y.flip(-1), lambda y: -y, lambda y: 1.001 * y, torch.nan_to_num):
        arm.step = lambda change=change: change(step())
        assert comparison.check(arm, situation).ok is False


def test_nothing_but_infinities_is_no_agreement():
    values = torch.full((3,), torch.inf)
    assert distances.distance(values, values).relative_error != 0


@pytest.mark.parametrize("workload", ["forward", "train"])
def test_what_two_equal_calls_disagree_in_is_not_checked(build, workload):
    before = "torch.unseen = getattr(torch, 'unseen', 0) + 1; x = x * torch.unseen"
    arm, situation = build(workload, before=before)
    result = comparison.check(arm, situation)
    assert result.ok is None and "state outside buffers: two calls of the plain" in result.text


@pytest.mark.parametrize("workload", ["forward", "train"])
def test_inputs_that_a_model_overwrites_are_the_same_for_both_sides(build, workload):
    arm, situation = build(workload, before="x.add_(1)")
    for _ in range(3):
        arm.batches.advance()
        arm.step()
    before = arm.batches.inputs[0].clone()
    result = comparison.check(arm, situation)
    assert result.ok, result.text
    assert torch.equal(arm.batches.inputs[0], before)


def test_a_loss_that_draws_is_not_checked(build):
    loss = "(output * torch.randn_like(output)).square().mean()"
    result = comparison.check(*build("train", loss=loss))
    assert result.ok is None and "it draws random numbers there too" in result.text


def test_what_draws_is_red_all_the_same_where_it_is_not_finite(build):
    arm, situation = build(before="x = F.dropout(x, 0.5)")
    step = arm.step
    arm.step = lambda: step() * float("nan")
    assert comparison.check(arm, situation).ok is False


def test_buffers_that_training_has_changed_are_no_error_and_left_as_they_were(build):
    before = "self.mean.mul_(0.9).add_(x.detach().mean(0) + 1, alpha=0.1); x = x - self.mean"
    arm, situation = build("train", before=before)
    for _ in range(3):
        arm.step()
    mean = arm.model.module.mean.clone()
    result = comparison.check(arm, situation)
    assert mean.abs().max() > 0.1 and torch.equal(arm.model.module.mean, mean)
    assert result.ok, result.text
    assert result.relative_error < 1e-6 and result.curve_difference < 1e-5


def test_a_loss_without_a_gradient_is_a_mistake_in_one_sentence(build):
    arm, _ = build("train", before="y = self.requires_grad_(False)")
    with pytest.raises(Mistake, match="no parameter with requires_grad"):
        arm.step()


def test_the_lengths_of_a_packed_sequence_stay_on_the_cpu():
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(2, 2)])
    moved = map_tensors({"x": packed}, lambda tensor: tensor.to("meta", torch.float64))["x"]
    assert moved.data.is_meta and moved.data.dtype == torch.float64
    assert moved.batch_sizes.tolist() == [2, 2, 1]
    assert type(moved) is type(packed) and len(tensors(packed)) == 1


def test_tensors_of_a_structure_come_in_its_order():
    a, b = torch.zeros(2), torch.arange(3)
    listed = tensors({"x": [a, None], "y": (b, "text")})
    assert [id(tensor) for tensor in listed] == [id(a), id(b)]
    assert [id(tensor) for tensor in measurable((b, a, torch.empty(0)))] == [id(a)]


@pytest.mark.parametrize("bad", [0, 1])
def test_any_output_that_is_not_finite_is_found(bad):
    output = {"a": torch.zeros(2), "b": [torch.zeros(3, dtype=torch.complex64)], "n": 1}
    assert not FiniteWatch(CPU).poll(output)
    (output["a"], output["b"][0])[bad][-1] = float("nan")
    assert FiniteWatch(CPU).poll(output)
