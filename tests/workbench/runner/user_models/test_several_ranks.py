"""Users' models on several ranks: state of a rank, hooks, and parameters that share memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from built import owned, stepped
from rank_checks import assert_right, needs_cores

from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.distributed import world
from workbench.runner.distributed.parallel import Parallel
from workbench.runner.distributed.world import RankError
from workbench.runner.failures import Mistake, explain
from workbench.runner.numerics import comparison
from workbench.runner.variants.variant import Variant

pytestmark = needs_cores
FILE = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 24), nn.Linear(24, 16)
        self.calls = 0
        {prepare}

    def forward(self, x):
        {before}
        return self.b(torch.relu(self.a(x)))

def build():
    return Own(), lambda n: torch.randn(n, 16{needs}), lambda y, x: y.float().square().mean()
"""
COUNTED = ("pass", "self.calls += 1; x = x * (1 + 0.1 * (self.calls % 7))")
HOOK = ("self.a.weight.register_hook(lambda g: g.sign() * 0.01)", "pass")
SHARED_MEMORY = ("self.b.weight.data = self.a.weight.data.t()", "pass")
STATES = {
    "power iteration": ("self.a = nn.utils.spectral_norm(self.a)", "pass"),
    "counted calls": COUNTED,
    "hook of a gradient": HOOK,
    "overwritten input": ("pass", "x.mul_(0.5)"),
    "learned scale": ("self.scale = nn.Parameter(torch.tensor(1.5))", "x = x * self.scale"),
    "hook of a sum": (
        "self.a.weight.register_post_accumulate_grad_hook("
        "lambda p: setattr(p, 'grad', p.grad.clamp(-1e-3, 1e-3)))",
        "pass",
    ),
}


@pytest.fixture
def write(tmp_path: Path):
    """Return a function that writes a model and returns its configuration."""

    def write(prepare: str, before: str, needs: str = "") -> Configuration:
        path = tmp_path / "mine.py"
        path.write_text(FILE.format(prepare=prepare, before=before, needs=needs))
        return owned(path, settings={"batch": 4})

    return write


def step_divided(configuration: Configuration, **toggles: str) -> Variant:
    return stepped(configuration, arms=VariantCache(), data_parallel="2", **toggles)


SHARDED = {
    "tied weights": (
        "self.a = nn.Linear(16, 24, bias=False); self.b = nn.Linear(24, 16)\n"
        "        self.c = nn.Linear(16, 24, bias=False); self.c.weight = self.a.weight",
        "x = x + self.b(self.c(x))",
    ),
    "recurrent layer": ("self.r = nn.LSTM(16, 16)", "x = self.r(x[None])[0][0]"),
    "differentiated input": (
        "pass",
        "x = x + torch.autograd.grad(self.a(x).square().sum(), x, create_graph=True)[0]",
        ", requires_grad=True",
    ),
    "blocks": ("self.c = nn.ModuleList([nn.Linear(16, 16)])", "x = self.c[0](x)"),
}
FROZEN = ("self.requires_grad_(False)", "pass", ", requires_grad=True")
REFUSED = {
    "shared memory": (SHARED_MEMORY, "share memory, but their shards would not"),
    "hook": (HOOK, "a.weight has hooks"),
    "list": (("self.all = [(self.a.weight,)]", "x = x + self.all[0][0].mean()"), "function refers"),
    "skipped layer": (
        ("self.c = nn.Linear(16, 16)", "x = self.c(x) if torch.rand(()) < 0.5 else x"),
        "some steps skip module.c,",
    ),
    "layer that is skipped rarely": (
        (
            "self.c, self.calls = nn.Linear(16, 16), 0",
            "self.calls += 1; x = self.c(x) if x.sum() > 1e6 or self.calls % 20 else x",
        ),
        "some steps skip module.c,",
    ),
    "layer that Python's random numbers skip": (
        (
            "import random; self.random = random.random; self.c = nn.Linear(16, 16)",
            "x = x if self.random() < 0.2 else self.c(x)",
        ),
        "some steps skip module.c,",
    ),
    "scalar": (STATES["learned scale"], "scale has no dimension to shard"),
    "complex numbers": (
        ("self.c = nn.Parameter(torch.ones(16) * 1j)", "x = (x.float() * self.c).abs()"),
        "parameters of torch.complex64 and torch.float32",
    ),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", STATES)
def test_each_rank_has_its_own_state_and_hooks_in_the_reference_too(write, kind):
    arm = step_divided(write(*STATES[kind]))
    result = comparison.check(arm, arm.situation)
    assert result.ok is True and "8 training steps" in result.text, result.text


@pytest.mark.parametrize("state", ["x.mean(0).detach()", "float(x.mean())"])
def test_state_that_follows_the_rows_of_a_rank_is_not_checked(write, state):
    """The reference knows the state of rank 0 alone, so a right model would be called wrong."""
    before = f"x = x + getattr(self, 'last', 0.0); self.last = {state}"
    arm = step_divided(write("pass", before))
    result = comparison.check(arm, arm.situation)
    assert result.ok is None and "last depends on the batch" in result.text, result.text


@pytest.mark.parametrize("sharding", ["off", "full"])
def test_a_check_leaves_no_rank_in_another_state(write, sharding):
    arm = step_divided(write(*COUNTED), sharding=sharding)
    arm.find_evidence()
    for _ in range(2):
        result = comparison.check(arm, arm.situation)
        assert result.ok is True and "8 training steps" in result.text, result.text


def test_weights_that_share_memory_have_no_loss_curve_on_two_ranks(write):
    arm = step_divided(write(*SHARED_MEMORY))
    result = comparison.check(arm, arm.situation)
    assert result.ok is True and "b.weight share memory" in result.text, result.text


@pytest.mark.parametrize("weight", ["self.t.data", "self.t.detach()"])
def test_ranks_that_change_weights_in_calls_are_not_checked(write, weight):
    """Each rank moves its own copy once, and a reference with one copy moves it for all ranks."""
    frozen = "self.t = nn.Parameter(torch.zeros(24, 16), requires_grad=False)"
    change = f"{weight}.lerp_(self.a.weight.detach(), 0.1); x = x @ self.t.t() @ self.t"
    arm = step_divided(write(frozen, change))
    before = {name: weight.detach().clone() for name, weight in arm.plain_weights().items()}
    result = comparison.check(arm, arm.situation)
    assert result.ok is None and "calls of the model change weights" in result.text, result.text
    for name, weight in arm.plain_weights().items():
        assert torch.equal(weight, before[name]), f"the check changed {name}"


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", SHARDED)
def test_shards_train_as_the_reference_does(write, kind):
    arm = step_divided(write(*SHARDED[kind]), sharding="full")
    assert_right(arm, "data_parallel", "sharding")


@pytest.mark.parametrize(
    ("kind", "word"), [("learned scale", "scale is a scalar"), ("complex numbers", "is complex")]
)
def test_what_power_sgd_cannot_factor_is_refused(write, kind, word):
    model = STATES[kind] if kind in STATES else REFUSED[kind][0]
    with pytest.raises(Mistake, match=f"{word}; choose bf16"):
        step_divided(write(*model), gradient_compression="powersgd")


@pytest.mark.parametrize("kind", REFUSED)
def test_what_shards_would_train_otherwise_is_refused(write, kind):
    model, sentence = REFUSED[kind]
    with pytest.raises(Mistake, match=f"{sentence}.*switch sharding off"):
        step_divided(write(*model), sharding="full")


def test_a_model_without_trained_parameters_is_a_mistake_that_names_the_remedy(write):
    """A single rank computes the gradient of its inputs, and updates nothing."""
    configuration = write(*FROZEN)
    assert stepped(configuration).record.gradient_count == 0
    with pytest.raises(Mistake, match=r"no parameter .* is trained.*parallel=off"):
        step_divided(configuration)
    step_divided(configuration, sharding="full")


def test_reentrant_checkpoints_are_explained(write):
    """Torch's own error has 20 lines, and none of them names the argument."""
    configuration = write(
        "self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)",
        "x = torch.utils.checkpoint.checkpoint(self.second, self.first(x), use_reentrant=True)",
    )
    with pytest.raises(RuntimeError) as error:
        stepped(configuration, steps=3, data_parallel="2")
    failure = explain(error.value)
    assert "Data parallelism cannot train this model" in failure.sentence
    assert "pass use_reentrant=False" in failure.sentence
    assert "use_reentrant=False" in failure.fix


def test_a_mistake_that_all_ranks_meet_is_not_the_failure_of_another_rank(monkeypatch):
    """It is refused as without ranks, and no advice is given to go on with one device."""

    def fail() -> None:
        raise RankError("rank 1: no dimension to shard", 1)

    monkeypatch.setattr(world, "current", lambda: SimpleNamespace(await_answers=fail))
    ranks = Parallel.__new__(Parallel)
    ranks.rank, ranks._request_build = 0, lambda _configuration: None
    with pytest.raises(Mistake, match="no dimension"), ranks.building(None, 0):
        raise Mistake("no dimension to shard")
    with pytest.raises(RankError), ranks.building(None, 0):
        raise RuntimeError("the collective was ended")
