"""Checks of models whose state, or whose parameters, are where a module does not register them."""

from __future__ import annotations

import pytest
from test_odd_numerics import LOSS, build, check

MODEL = """
import array, collections, contextvars, enum, functools, random, weakref
import numpy as np
import torch
from torch import nn

class Slots:
    __slots__ = ("mean",)
    def __init__(self):
        self.mean = 0.0
class Numbers(list):
    total = 0.0
class Mode(enum.Enum):
    FIRST, LATER = 1, 2
class Meter:
    mean = 0
class Loss:
    mean = 0.0
    def __call__(self, o, x):
        value = o.square().mean()
        self.mean = 0.9 * self.mean + 0.1 * float(value)
        return value / self.mean
@functools.lru_cache
def table(n):
    return torch.arange(n) / n
@functools.cache
def cached():
    return Meter()
def counted(x, calls=[]):
    calls.append(1)
    return x * (1 + len(calls))
def numbered(function):
    calls = [0]
    def call(*arguments):
        calls[0] += 1
        return function(*arguments) * (1 + 0.1 * calls[0])
    return call
@numbered
def first(x):
    return x
@numbered
def second(x):
    return x
draws = np.random.default_rng(1), random.Random(1), np.random.RandomState(1)
setting, users = contextvars.ContextVar("setting", default=0), weakref.WeakKeyDictionary()
class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 24), nn.Linear(24, 16)
        MEMBERS
    def forward(self, x):
        BEFORE
        return self.b(torch.tanh(self.a(x)))
def build():
    return Own(), lambda batch: INPUTS, LOSS
"""
MEAN = LOSS.format(pick="o")


@pytest.fixture
def write(tmp_path):
    def written(
        members="pass",
        before="pass",
        *,
        inputs="torch.randn(batch, 16)",
        loss=MEAN,
    ):
        text = MODEL.replace("MEMBERS", members).replace("BEFORE", before)
        path = tmp_path / "mine.py"
        path.write_text(text.replace("INPUTS", inputs).replace("LOSS", loss))
        return path

    return written


STATE = {
    "slots": (
        "self.m = Slots()",
        "self.m.mean = self.m.mean / 2 + float(x.mean()); x = x + self.m.mean",
    ),
    "enumeration": (
        "self.m = Mode.FIRST",
        "x = 3 * x if self.m is Mode.LATER else x; self.m = Mode.LATER",
    ),
    "subclass of list": (
        "self.m = Numbers()",
        "self.m.append(1); self.m.total += 1; x = x * (len(self.m) + self.m.total)",
    ),
    "array": ("self.m = array.array('d', [0])", "self.m[0] += 1; x = x * self.m[0]"),
    "function cache": ("pass", "x = x + table(16).to(x.dtype)"),
    "default argument": ("pass", "x = counted(x)"),
    "parameter of the first call": (
        "self.s = None",
        "self.s = nn.Parameter(2 + 0 * x[0]) if self.s is None else self.s; x = x * self.s",
    ),
    "decorated functions": ("pass", "x = first(second(second(x)))"),
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("workload", ["forward", "train"])
@pytest.mark.parametrize("kind", STATE)
def test_state_outside_of_modules_is_carried_and_stays(write, kind, workload):
    result = check(build(write(*STATE[kind]), workload))
    assert result.ok is True, result.text


DRAWS = "draws random numbers"
NOT_CHECKED = {
    "object in a function cache": (
        "m = cached(); m.mean += 1; x = x * m.mean",
        "cached caches objects, which cannot be copied",
    ),
    "attribute of a function": (
        "first.n = getattr(first, 'n', 0) + 1; x = x * first.n",
        "n was created in a step",
    ),
    "context variable": (
        "setting.set(setting.get() + 1); x = x * setting.get()",
        "is a ContextVar, which cannot be copied",
    ),
    "module as a key": (
        "users[self] = users.get(self, 0) + 1; x = x * users[self]",
        "has modules or tensors as keys",
    ),
    "generators of numpy": ("x = x * (1 + draws[0].random()) * (1 + draws[2].rand())", DRAWS),
    "generator of Python": ("x = x * (1 + draws[1].random())", DRAWS),
    "swapped parameters": (
        "self.a.bias, self.b.bias = nn.Parameter(self.a.bias * 0.9), self.b.bias",
        "replace or swap parameters",
    ),
}


@pytest.mark.sample(7)
@pytest.mark.parametrize("workload", ["forward", "train"])
@pytest.mark.parametrize("kind", NOT_CHECKED)
def test_state_that_cannot_be_copied_is_not_checked_and_stays(write, kind, workload):
    before, reason = NOT_CHECKED[kind]
    result = check(build(write(before=before), workload))
    assert result.ok is None and reason in result.text, result.text


REFERENCES = {
    "recurrent layer": ("self.r = nn.GRU(16, 16)", "x = self.r(x[None])[0][0]"),
    "list": (
        "self.all = [(self.a.weight, {'b': self.b.bias})]",
        "x = x + self.all[0][0].mean() * self.all[0][1]['b']",
    ),
    "changing reference": (
        "self.now = [self.a.bias]",
        "x = x + self.now[0].sum(); self.now[0] = self.b.bias",
    ),
    "gradient hook": ("self.a.weight.register_hook(lambda g: g.clamp(-1e-4, 1e-4))", "pass"),
    "frozen in a step": ("self.n = 0", "self.n += 1; self.a.requires_grad_(self.n < 2)"),
    "overwritten input": ("pass", "x += self.b.bias"),
    "input with a gradient": ("pass", "x.requires_grad_(); x = x + self.b.bias"),
}


@pytest.mark.parametrize("kind", REFERENCES)
def test_what_refers_to_parameters_trains_as_in_the_reference(write, kind):
    result = check(build(write(*REFERENCES[kind]), "train"))
    assert result.ok is True and "update of the weights: 1.00 x" in result.text, result.text


def test_state_of_a_loss_is_carried(write):
    assert check(build(write(loss="Loss()"), "train")).ok is True


def test_weights_that_share_memory_have_no_loss_curve(write):
    arm = build(write("self.b.weight.data = self.a.weight.data.t()"), "train")
    result = check(arm)
    assert result.ok is True and "b.weight share memory" in result.text, result.text


def test_batches_of_several_shapes_stay_as_they_were_drawn(write):
    lengths = "torch.randn(batch, int(torch.randint(2, 9, ())), 16)"
    arm = build(write(before="x.mul_(2)", inputs=lengths), steps=40)
    assert max(float(inputs[0].abs().max()) for inputs in arm.batches.loose) < 10
    assert check(arm).ok is True


def test_a_packed_sequence_is_an_input(write):
    packed = "nn.utils.rnn.pack_sequence([torch.randn(3, 16), torch.randn(2, 16)])"
    path = write(before="x = nn.utils.rnn.pad_packed_sequence(x)[0]", inputs=packed)
    for workload in ("forward", "train"):
        assert check(build(path, workload)).ok is True
