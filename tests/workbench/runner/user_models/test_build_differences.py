"""A model whose builds differ is refused, or its numbers are not checked, with that reason."""

from __future__ import annotations

import pytest
from runner_driver import Driver

from sessions import numerics
from sessions.model import OWN, Configuration
from workbench import protocol

COUNTED = """
import pathlib, torch
builds = pathlib.Path(__file__).with_name("builds")
count = len(builds.read_text()) if builds.exists() else 0
builds.write_text("." * (count + 1))
def build():
    torch.manual_seed(0)
    module = {module}
    return module, torch.zeros(1, 4), lambda y, x: y.square().mean()
"""


def configuration(tmp_path, module: str) -> Configuration:
    path = tmp_path / "mine.py"
    path.write_text(COUNTED.replace("{module}", module))
    settings = {"batch": 4}
    return Configuration(
        family=OWN, preset="file", model={"source": str(path)}, workload="train", settings=settings
    )


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("torch.nn.Linear(4, 3 + count)", "weight is (3, 4) and (4, 4)"),
        ("torch.nn.Linear(4, 4, bias=bool(count % 2))", "bias is absent in one of them"),
    ],
)
def test_parameters_that_differ_are_a_mistake(runner: Driver, tmp_path, module, words):
    since = len(runner.messages)
    runner.start(configuration(tmp_path, module), steps=3)
    assert runner.finish().reason == "failed"
    (failure,) = [m for m in runner.messages[since:] if isinstance(m, protocol.Failure)]
    assert failure.kind == "mistake"
    assert f"two builds of the model differ: the parameter module.{words}" in failure.sentence


def test_modules_that_differ_are_the_reason_why_nothing_is_checked(runner: Driver, tmp_path):
    layers = "torch.nn.Linear(4, 4), torch.nn.Tanh() if count % 2 else torch.nn.Sigmoid()"
    runner.start(configuration(tmp_path, f"torch.nn.Sequential({layers})"), steps=3, check="last")
    assert runner.finish().reason == "done"
    ledger = runner.session.segments[-1].ledger
    assert numerics.mark(ledger) == "unknown"
    assert "two builds of the model differ: 1 is " in numerics.text(ledger)


def test_a_state_dict_without_frozen_parameters_is_no_difference(runner: Driver, tmp_path):
    module = """torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    module[0].weight.requires_grad_(False)
    module.register_state_dict_post_hook(lambda _, state, prefix, *__: drop(state, prefix))"""
    drop = "\ndef drop(state, prefix):\n    del state[prefix + '0.weight']\n"
    chosen = configuration(tmp_path, module)
    path = tmp_path / "mine.py"
    path.write_text(path.read_text() + drop)
    runner.start(chosen, steps=3, check="last")
    assert runner.finish().reason == "done"
    assert numerics.mark(runner.session.segments[-1].ledger) == "right"
