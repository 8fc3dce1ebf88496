"""A model that draws random numbers in training is checked in evaluation mode."""

from __future__ import annotations

import contextlib
import functools
import random
from types import SimpleNamespace

import numpy
import pytest
import torch

from sessions.model import Configuration
from sessions.verdicts.regression import DRAWS, SKETCH
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import resolve
from workbench.runner.distributed.mesh import Layout
from workbench.runner.distributed.parallel import Parallel
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.numerics import comparison, training_curve

CPU = torch.device("cpu")
EVALUATED = "in evaluation mode (the model draws random numbers in training"
FILE = """
import random
import numpy
import torch
from torch import nn
from torch.nn import functional as F

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 16)
        self.norm, self.dropout = nn.BatchNorm1d(32), nn.Dropout({p})
        self.generator = torch.Generator().manual_seed(3)
        self.frozen = nn.Identity().eval()

    def train(self, mode=True):
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x):
        x = self.a(x)
        {inside}
        return self.b(self.dropout(F.gelu(x)))

def build():
    return Own(), lambda batch: torch.randn(batch, 16), lambda output, x: {loss}
"""
SQUARE = "(output.float() - x.float().flip(-1)).square().mean()"
DRAWS_BY_OTHERS = (
    "if self.training: x = x + 0.1 * torch.randn(32, generator=self.generator)"
    " + random.random() + numpy.random.rand()"
)


@pytest.fixture
def build(tmp_path):
    def build(workload="train", inside="pass", p=0.3, loss=SQUARE, **toggles):
        path = tmp_path / "mine.py"
        path.write_text(FILE.format(inside=inside, p=p, loss=loss))
        configuration = Configuration(
            family="own", preset="file", workload=workload, model={"source": str(path)},
            toggles=toggles,
        )  # fmt: skip
        arm = VariantCache().get(resolve(configuration, CPU), PhaseTracker(lambda phase: None))
        return arm, arm.situation

    return build


TOGGLES = [{}, {"precision": "amp_bf16"}, {"compile": "default"}]


def stepped(arm, count=3):
    losses = []
    with arm.entered():
        for _ in range(count):
            arm.ready()
            losses.append(float(arm.step()))
    return losses


def scaled_output(arm):
    arm.model.module.register_forward_hook(lambda module, inputs, output: output * 1.03)


def turned_gradients(arm):
    for parameter in arm.model.parameters():
        parameter.register_hook(torch.neg)


def missing_gradient(arm):
    arm.model.module.a.weight.register_hook(torch.zeros_like)


def wrong_rate(arm):
    for group in arm.trainer.optimizer.param_groups:
        group["lr"] *= 1.5


def wrong_computation(arm):
    compute = arm.compute
    arm.compute = lambda *batch: compute(*batch) * 1.03


FAULTS = [scaled_output, turned_gradients, wrong_rate, wrong_computation]
# Moments and decay go on moving a weight that has no gradient: in BF16 no loss shows it.
PLANTED = [(toggles, fault) for toggles in TOGGLES for fault in FAULTS]
PLANTED += [(toggles, missing_gradient) for toggles in TOGGLES if "precision" not in toggles]


@pytest.mark.parametrize("toggles", TOGGLES, ids=str)
def test_what_is_right_is_green_and_says_in_which_mode(build, eager_backend, toggles):
    arm, situation = build(**toggles)
    stepped(arm)
    result = comparison.check(arm, situation)
    assert result.ok, result.text
    assert result.text.startswith(EVALUATED) and result.curve_steps == training_curve.STEPS
    assert result.relative_error < (0.02 if "precision" in toggles else 1e-6)
    assert result.curve_difference < (0.01 if "precision" in toggles else 1e-5)
    assert ("compiled once more" in result.text) == ("compile" in toggles)


@pytest.mark.sample(7)
@pytest.mark.parametrize(("toggles", "fault"), PLANTED)
def test_what_is_wrong_is_red(build, eager_backend, toggles, fault):
    arm, situation = build(**toggles)
    stepped(arm)
    fault(arm)
    result = comparison.check(arm, situation)
    assert result.ok is False and result.text.startswith(EVALUATED), result.text


@pytest.mark.slow
@pytest.mark.parametrize("fault", [None, scaled_output, turned_gradients])
def test_generated_code_is_judged_too(build, fault):
    arm, situation = build(compile="default")
    stepped(arm)
    if fault:
        fault(arm)
    result = comparison.check(arm, situation)
    assert result.ok is (fault is None) and result.text.startswith(EVALUATED), result.text


@pytest.mark.parametrize("inside", ["pass", DRAWS_BY_OTHERS, "x = self.norm(x)"])
def test_a_check_disturbs_neither_random_numbers_nor_modes_nor_training(build, inside):
    ends = []
    for looks in (False, True):
        torch.manual_seed(11)
        random.seed(11)
        numpy.random.seed(11)
        arm, situation = build(inside=inside)
        losses = stepped(arm)
        modes = [module.training for module in arm.model.modules()]
        if looks:
            result = comparison.check(arm, situation)
            assert result.ok and result.text.startswith(EVALUATED), result.text
        assert [module.training for module in arm.model.modules()] == modes
        assert set(modes) == {False, True}
        losses += stepped(arm)
        ends.append((losses, [tensor.clone() for tensor in arm.model.state_dict().values()]))
    assert len(set(ends[0][0])) == 6 and ends[0][0] == ends[1][0]
    assert all(map(torch.equal, ends[0][1], ends[1][1]))


def test_a_check_that_is_put_off_leaves_modes_and_random_numbers_too(build):
    def between():
        calls.append(None)
        if len(calls) == 6:
            raise comparison.PutOff

    arm, situation = build()
    calls: list[None] = []
    state, modes = torch.get_rng_state(), [module.training for module in arm.model.modules()]
    with pytest.raises(comparison.PutOff):
        comparison.check(arm, situation, between)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in arm.model.modules()] == modes


def test_a_draw_that_changed_nothing_this_time_is_seen_all_the_same(build):
    result = comparison.check(*build(p=1e-9))
    assert result.ok and result.text.startswith(EVALUATED), result.text


def test_what_never_draws_is_compared_as_it_trains(build):
    result = comparison.check(*build(p=0.0))
    assert result.ok and result.text.startswith("relative error"), result.text


def test_statistics_of_batches_that_are_not_compared_are_told(build):
    result = comparison.check(*build(inside="x = self.norm(x)"))
    assert result.ok and "its buffers are not updated" in result.text
    assert "buffers" not in comparison.check(*build()).text


def test_inference_with_dropout_that_is_inert_is_checked_as_ever(build):
    result = comparison.check(*build("forward"))
    assert result.ok and result.text.startswith("relative error"), result.text


@pytest.mark.parametrize("workload", ["forward", "train"])
def test_what_draws_in_evaluation_mode_too_is_not_checked(build, workload):
    result = comparison.check(*build(workload, inside="x = F.dropout(x, 0.5)"))
    assert result.ok is None and "draws random numbers" in result.text
    assert "evaluation mode" in result.text


def test_ranks_that_each_draw_others_are_not_checked(build):
    arm, situation = build()
    alone = lambda *_: contextlib.nullcontext()  # noqa: E731
    ranks = SimpleNamespace(
        pipeline=None,
        fully_shard=None,
        entered=alone,
        evaluating=alone,
        full_parameters=None,
        layout=Layout(replicate=2),
    )
    for name in ("outputs", "loss"):
        setattr(ranks, name, functools.partial(getattr(Parallel, name), ranks))
    arm.divided = ranks
    result = comparison.check(arm, situation)
    assert result.ok is None and result.text.endswith("in training, different ones on each rank")


def test_what_fails_in_evaluation_mode_is_not_checked_and_says_why(build):
    result = comparison.check(*build(inside="if not self.training: return [x]"))
    assert result.ok is None and "'list' object has no attribute 'float'" in result.text, (
        result.text
    )


def test_evidence_of_compiling_does_not_count_what_a_check_compiles(build, eager_backend):
    arm, situation = build(compile="default")
    stepped(arm)
    before = arm.compiles.read().text()
    assert comparison.check(arm, situation).ok
    stepped(arm)
    assert arm.compiles.read().text() == before and arm.compiles.graphs == 1


def test_every_first_step_draws_the_same_numbers_and_the_session_says_that_it_does(
    runner, tmp_path
):
    path = tmp_path / "drawing.py"
    path.write_text(
        "import random, numpy, torch\n\nclass Own(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        y = torch.nn.functional.dropout(super().forward(x), 0.5)\n"
        "        return y * random.random() * numpy.random.rand()\n\n"
        "def build():\n    return Own(8, 8), torch.zeros(1, 8)\n"
    )
    ledgers = []
    for option in ("allowed", "forbidden"):
        configuration = Configuration(
            family="own",
            preset="file",
            model={"source": str(path)},
            toggles={"sdp_math": option},
        )
        runner.start(configuration, steps=2)
        assert runner.finish().reason == "done"
        ledgers.append(runner.session.segments[-1].ledger)
    assert ledgers[0][SKETCH] == ledgers[1][SKETCH]
    assert all(ledger[DRAWS] for ledger in ledgers)


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
def test_router_noise_of_a_bundled_family_is_compared_in_evaluation_mode(precision):
    configuration = Configuration(
        family="moe",
        preset="tiny",
        workload="train",
        model={"input_dim": 32, "hidden_dim": 32, "n_layers": 1, "gating": "noisy_topk"},
        settings={"batch": 2, "sequence": 16},
        toggles={"precision": precision},
    )
    arm = VariantCache().get(resolve(configuration, CPU), PhaseTracker(lambda phase: None))
    stepped(arm)
    result = comparison.check(arm, arm.situation)
    assert result.ok and result.text.startswith(EVALUATED), result.text
    assert all(module.training for module in arm.model.modules())
    arm.model.blocks[0].register_forward_hook(
        lambda module, inputs, output: output._replace(x=output.x.flip(-1))
    )
    result = comparison.check(arm, arm.situation)
    assert result.ok is False, result.text
