"""Gradients that ranks compress: rounding that the option is defined by is no wrong result."""

from __future__ import annotations

from built import stepped
from rank_checks import needs_cores

from sessions.model import Configuration
from workbench.runner.numerics import comparison


@needs_cores
def test_the_tolerance_knows_that_gradients_are_sent_in_bf16():
    settings = {"batch": 4, "sequence": 16}
    configuration = Configuration(family="mahia", preset="tiny", settings=settings, seed=2)
    arm = stepped(configuration, steps=4, data_parallel="2", gradient_compression="bf16")
    result = comparison.check(arm, arm.situation)
    assert result.ok, result.text
