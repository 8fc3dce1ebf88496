"""Toggles of the same stage give the same result in any order of their names."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from built_arms import CPU, configuration

from workbench.runner.config.availability import switched
from workbench.runner.config.resolve import resolve
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.interfaces import Situation
from workbench.runner.toggles import Stage, Toggle, all_toggles
from workbench.runner.variants.build import Build

# Values that toggles set; functions are called later, and have tests of their own.
VALUES = [
    field.name
    for field in dataclasses.fields(Build)
    if field.name
    not in ("situation", "phases", "flags", "preparations", "transforms", "compute_wrappers",
            "step_wrappers")
]  # fmt: skip


def pairs(stage: Stage) -> Iterator[tuple[tuple[Toggle, str], tuple[Toggle, str]]]:
    """Yield every two options of different toggles of a stage."""
    toggles = [toggle for toggle in all_toggles().values() if toggle.stage is stage]
    for first, second in itertools.combinations(toggles, 2):
        for options in itertools.product(list(first.options)[1:], list(second.options)[1:]):
            yield (first, options[0]), (second, options[1])


def values(situation: Situation, *choices: tuple[Toggle, str]) -> dict[str, Any]:
    build = Build(situation, PhaseTracker(lambda phase: None))
    for toggle, option in choices:
        toggle.apply(option, build)
    return {name: getattr(build, name) for name in VALUES}


@pytest.mark.parametrize("stage", Stage)
def test_two_toggles_of_a_stage_build_the_same_in_either_order(stage):
    plain = resolve(configuration("moe", "train", batch=8), CPU)
    for first, second in pairs(stage):
        chosen = {toggle.name: option for toggle, option in (first, second)}
        situation = switched(plain, chosen)
        assert values(situation, first, second) == values(situation, second, first), chosen
