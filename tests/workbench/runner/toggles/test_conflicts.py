"""Offered options can be chosen: both sides report a conflict, and fixes leave none behind."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

import pytest
import torch

from kernels import hardware
from sessions.model import Configuration
from workbench.protocol import Blocked
from workbench.runner.config.availability import (
    blocked_options,
    require_unblocked,
    switched,
    why_blocked,
)
from workbench.runner.config.resolve import resolve
from workbench.runner.failures import Mistake
from workbench.runner.interfaces import Situation
from workbench.runner.toggles import all_toggles

ALL = [
    (family, workload)
    for family in ("moe", "mamba2", "adaattn", "mahia")
    for workload in ("train", "forward")
]
places = pytest.mark.parametrize(
    ("family", "workload"),
    [("hydra", "train"), ("hydra", "generate")]
    + [pytest.param(*case, marks=pytest.mark.slow) for case in ALL],
)


@pytest.fixture
def plain(monkeypatch, family, workload) -> Situation:
    """Everything off, on a machine with eight GPUs that can do all."""
    cpu = torch.device("cpu")
    able = dataclasses.replace(
        hardware.of(cpu), name="NVIDIA H200", capability=(9, 0), bf16=True, fp16=True, tf32=True
    )
    monkeypatch.setattr(hardware, "of", lambda device: able)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    requested = Configuration(
        family=family,
        preset="tiny",
        workload=workload,
        settings={"batch": 8},
        toggles={name: toggle.off for name, toggle in all_toggles().items()},
    )
    return resolve(requested, torch.device("cuda", 0))


def chosen_by_one(plain: Situation) -> Iterator[tuple[Situation, dict[str, dict[str, Blocked]]]]:
    """The situations with one option, each with what is blocked then."""
    free = blocked_options(plain)
    for name, toggle in all_toggles().items():
        for option in list(toggle.options)[1:]:
            if option not in free.get(name, {}):
                situation = switched(plain, {name: option})
                yield situation, blocked_options(situation)


def problem(situation: Situation) -> str:
    """Return why the situation cannot run as it is; empty if it can."""
    try:
        require_unblocked(situation)
    except Mistake as mistake:
        return str(mistake)
    return ""


@places
def test_whatever_is_offered_beside_an_option_leaves_that_one_usable(plain):
    tried = 0
    for situation, blocked in chosen_by_one(plain):
        (name,) = (
            toggle for toggle in all_toggles() if situation.option(toggle) != plain.option(toggle)
        )
        for other, toggle in all_toggles().items():
            for option in list(toggle.options)[1:] if other != name else ():
                if option not in blocked.get(other, {}):
                    tried += 1
                    assert not problem(switched(situation, {other: option})), (name, other, option)
    assert tried > 500


@places
def test_a_fix_by_toggles_leaves_nothing_that_cannot_be_used(plain):
    tried, seen = 0, set()
    for situation, blocked in chosen_by_one(plain):
        (chosen,) = (
            toggle for toggle in all_toggles() if situation.option(toggle) != plain.option(toggle)
        )
        for name, options in blocked.items():
            for option, why in options.items():
                kind = (chosen, name, why.reason)
                if not why.set or not why.set.keys() <= all_toggles().keys() or kind in seen:
                    continue
                seen.add(kind)
                tried += 1
                fixed = switched(situation, {**why.set, name: option})
                others_blocked = [
                    toggle
                    for toggle in all_toggles()
                    if toggle != name and why_blocked(toggle, fixed.option(toggle), fixed)
                ]
                assert not others_blocked, (name, option, why)
    assert tried > 10


@pytest.mark.parametrize(("family", "workload"), [("hydra", "train")])
@pytest.mark.parametrize(
    ("toggles", "other", "option", "change"),
    [
        ({}, "activation_offload", "on", {}),
        ({}, "adamw", "8bit_bitsandbytes", {}),
        ({}, "compile", "reduce-overhead", {}),
        ({"pipeline_parallel": "4"}, "tensor_parallel", "2", {}),  # 8 GPUs
        (
            {"pipeline_parallel": "4", "micro_batches": "4"},
            "data_parallel", "2", {"micro_batches": "auto"},
        ),
        ({"micro_batches": "4"}, "compile", "reduce-overhead", {"micro_batches": "auto"}),
    ],
)  # fmt: skip
def test_stages_grey_out_what_does_not_go_with_them_and_the_fix_gives_them_up(
    plain, monkeypatch, toggles, other, option, change
):
    monkeypatch.setattr("workbench.runner.training.optimizers.installed", lambda _: True)
    monkeypatch.setattr("models.hydra.HydraConfig.n_layers", 4)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    staged = switched(plain, {"pipeline_parallel": "2", **toggles})
    assert not problem(staged)
    why = blocked_options(staged)[other][option]
    expected = ("cannot be combined with Pipeline parallel: ", "combined with pipeline parallelism")
    assert any(words in why.reason for words in expected), why.reason
    assert why.set == {"pipeline_parallel": "off", **change} and why.fix
    assert not problem(switched(staged, {**why.set, other: option}))


@pytest.mark.parametrize(("family", "workload"), [("hydra", "train")])
@pytest.mark.parametrize("other", ["data_parallel", "tensor_parallel"])
def test_stages_combine_with_other_ranks_while_there_are_gpus_for_all(plain, other):
    staged = switched(plain, {"pipeline_parallel": "2"})
    assert "2" not in blocked_options(staged).get(other, {})
    assert not problem(switched(staged, {other: "2"}))
