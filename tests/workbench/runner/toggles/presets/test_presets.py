"""Presets of toggles: they name what exists, say what they leave out, and run."""

from __future__ import annotations

import dataclasses
import itertools
from functools import partial
from types import SimpleNamespace

import msgspec
import pytest
import torch

from kernels import Operator, hardware
from models import FAMILIES
from sessions.model import Configuration
from workbench import protocol
from workbench.protocol import OR, Blocked
from workbench.runner.config import availability as availability_module
from workbench.runner.config import presets, resolve
from workbench.runner.config.estimate import footprint
from workbench.runner.context import RunnerContext
from workbench.runner.engine import RUNS
from workbench.runner.toggles import Stage, _ranks, all_toggles

CPU = torch.device("cpu")
OFF = {name: toggle.off for name, toggle in all_toggles().items()}
GUIDE = {  # the mixture-of-experts guide: does it compile, capture, checkpoint; all use AMP
    "development": (False, False, True),
    "production-inference": (True, False, False),
    "production-training": (False, False, True),
}


def preset(name: str) -> dict[str, str]:
    return next(preset.toggles for preset in presets.all_presets() if preset.name == name)


def settled(toggles: dict[str, str], **changes) -> protocol.Availability:
    requested = Configuration(
        **{"family": "hydra", "preset": "tiny", "workload": "train", **changes}, toggles=toggles
    )
    return resolve.availability(requested, CPU)


def switched(toggles: dict[str, str]) -> dict[str, str]:
    return {name: option for name, option in toggles.items() if option != OFF[name]}


def options_of(name: str) -> dict[str, tuple[str, ...]]:
    """Return the options of a preset by toggle."""
    return {
        toggle.name: toggle.presets[name]
        for toggle in all_toggles().values()
        if name in toggle.presets
    }


def test_each_preset_that_a_toggle_names_exists_and_so_does_each_option():
    for name, toggle in all_toggles().items():
        assert toggle.presets.keys() <= presets.PRESETS.keys(), name
        for options in toggle.presets.values():
            assert set(options) <= set(toggle.options), f"{name} has no option of {options}"
            assert toggle.off not in options and len(set(options)) == len(options)
        assert not toggle.presets or toggle.stage is not Stage.MODEL, f"{name} changes the model"
    assert not options_of("eager")


def test_no_options_name_could_be_taken_for_several():
    names = [option for toggle in all_toggles().values() for option in toggle.options]
    assert not [name for name in names if OR in name]


@pytest.mark.sample(14)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", presets.PRESETS)
def test_every_preset_can_start_with_every_family_and_workload(name, family):
    for workload in FAMILIES[family].workloads:
        availability = settled(
            preset(name),
            family=family,
            preset=FAMILIES[family].default_preset(2**33, "cpu"),
            workload=workload,
        )
        assert availability.problems == []
        again = settled(availability.toggles, family=family, preset="", workload=workload)
        assert again.left_out == []  # what it came to is no preference any more


def test_a_preset_switches_off_what_it_does_not_name_and_leaves_the_model_alone():
    before = {"rope_cache": "shared", "ccgqa": "off", "adamw": "fused"}
    availability = settled(before | preset("eager"))
    assert switched(availability.toggles) == {"ccgqa": "off"}
    assert availability.left_out == []


@pytest.mark.parametrize("name", GUIDE)
def test_the_guides_three_configurations_are_as_it_gives_them(name):
    compiles, captures, checkpoints = GUIDE[name]
    options = options_of(name)
    assert options["precision"] == ("amp_bf16", "amp_fp16")
    assert options.get("compile", (None,))[0] == ("max-autotune" if compiles else None)
    assert ("cuda_graphs" in options) == captures
    assert options.get("checkpointing") == (("full",) if checkpoints else None)
    assert options.keys() <= {"precision", "compile", "checkpointing"}


def test_what_is_blocked_is_left_out_with_its_reason_and_the_rest_applied():
    availability = settled(preset("latency"), workload="forward")
    assert switched(availability.toggles) == {"precision": "bf16"}
    left = {(option.toggle, option.option): option for option in availability.left_out}
    assert left.keys() == {
        ("triton", "on"), ("adamw", "fused"), ("adamw", "foreach"), ("cuda_graphs", "on"),
    }  # fmt: skip
    assert left["cuda_graphs", "on"].reason.startswith("needs a CUDA GPU")
    assert left["adamw", "fused"].fix == "Choose the training step."
    assert {option.taken for option in availability.left_out} == {"off", "loop"}


def test_the_next_best_option_takes_the_place_of_a_blocked_one():
    availability = settled(
        {"compile": "max-autotune|default|off", "attention": "flash4|manual|auto"}
    )
    assert (availability.toggles["compile"], availability.toggles["attention"]) == (
        "default",
        "manual",
    )
    assert [(option.option, option.taken) for option in availability.left_out] == [
        ("flash4", "manual"),
        ("max-autotune", "default"),
    ]


def test_a_later_toggle_sees_what_an_earlier_one_came_to(monkeypatch):
    """CUDA graphs are blocked by the AdamW that was taken, and not by the preferred one."""
    seen = []

    def blocked(option, situation):
        if option != "off":
            seen.append(situation.option("adamw"))
        return None

    replaced = dataclasses.replace(all_toggles()["cuda_graphs"], blocked=blocked)
    monkeypatch.setitem(all_toggles(), "cuda_graphs", replaced)
    settled({"cuda_graphs": "on|off", "adamw": "fused|loop"}, workload="forward")
    assert seen and set(seen) == {"loop"}


@pytest.mark.parametrize(
    ("preferred", "expected", "left_out"),
    [
        # Micro-batches need the pipeline of a later toggle, which two cores cannot run.
        ({"micro_batches": "2|auto", "pipeline_parallel": "4|off"}, {},
         {"micro_batches": "needs pipeline parallelism, which is off",
          "pipeline_parallel": "needs 4 CPU cores; this machine has 2"}),
        # Two ranks with four are too many, but the four cannot run alone either.
        ({"context_parallel": "2|off", "tensor_parallel": "4|off"}, {"context_parallel": "2"},
         {"tensor_parallel": "needs 8 CPU cores; this machine has 2"}),
    ],
)  # fmt: skip
def test_options_that_depend_on_each_other_are_settled_together(
    monkeypatch, preferred, expected, left_out
):
    monkeypatch.setattr(_ranks, "usable_cores", lambda: 2)
    availability = settled(preferred)
    assert availability.problems == []
    assert switched(availability.toggles) == expected
    assert {option.toggle: option.reason for option in availability.left_out} == left_out


@pytest.mark.parametrize("family", ["hydra", "moe"])
def test_no_pair_of_preferences_prevents_a_start_or_is_left_out_without_need(monkeypatch, family):
    monkeypatch.setattr(_ranks, "usable_cores", lambda: 2)
    last = {name: list(toggle.options)[-1] for name, toggle in all_toggles().items()}
    for pair in itertools.combinations(OFF, 2):
        preferred = {name: f"{last[name]}{OR}{OFF[name]}" for name in pair}
        requested = Configuration(family=family, preset="tiny", workload="train", toggles=preferred)
        situation = resolve.resolve(requested, CPU)
        availability_module.require_unblocked(situation)
        chosen = availability_module.usable_choices(situation)
        for option in situation.left_out:
            assert availability_module.why_unusable(
                option.toggle, option.option, situation, chosen
            ), f"{option.toggle}={option.option} of {preferred} is usable"


def test_an_option_named_by_itself_is_never_given_up_in_silence():
    assert "=fused cannot be used" in settled({"adamw": "fused"}, workload="forward").problems[0]
    both = settled({"adamw": "fused|foreach"}, workload="forward")
    assert "=foreach cannot be used" in both.problems[0]
    assert [option.option for option in both.left_out] == ["fused"]


def test_a_name_that_does_not_exist_is_a_mistake_in_a_preference_too():
    assert "unknown 'fp7'" in settled({"precision": "amp_bf16|fp7"}).problems[0]


def test_on_a_gpu_that_has_all_of_it_nothing_is_left_out(monkeypatch):
    """Only what a GPU decides is made up here; toggles look at the device and its capabilities."""
    h200 = dataclasses.replace(
        hardware.of(CPU), name="NVIDIA H200", capability=(9, 0), bf16=True, fp16=True, tf32=True
    )
    monkeypatch.setattr(hardware, "of", lambda device: h200)
    unavailable = Operator.unavailable
    monkeypatch.setattr(
        Operator,
        "unavailable",
        lambda op, impl, device: None if impl == "triton" else unavailable(op, impl, device),
    )
    cuda = torch.device("cuda", 0)
    for name in ("development", "production-inference", "production-training", "throughput"):
        training = name != "production-inference"
        requested = Configuration(
            family="moe",
            preset="tiny",
            workload="train" if training else "forward",
            toggles=preset(name),
        )
        availability = resolve.availability(requested, cuda)
        assert (availability.problems, availability.left_out) == ([], []), name
        assert availability.toggles["precision"] == "amp_bf16"


def test_the_runner_offers_them_and_tells_what_a_run_leaves_out(runner, small):
    catalogue = runner.messages[0]
    assert isinstance(catalogue, protocol.Catalogue)
    offered = {preset.name: preset for preset in catalogue.presets}
    assert offered.keys() == presets.PRESETS.keys()
    assert all(preset.title and preset.help for preset in offered.values())
    requested = msgspec.structs.replace(small, toggles=offered["latency"].toggles)
    count = len(runner.session.events)
    runner.start(requested, steps=3)
    assert runner.finish().reason == "done"
    ran = runner.session.segments[-1].configuration.toggles
    assert switched(ran) == {"precision": "bf16"}
    warnings = [event.text for event in runner.session.events[count:] if event.kind == "warning"]
    assert any(
        text.startswith(
            "CUDA graphs: Off is used instead of On, which cannot be used: needs a CUDA GPU"
        )
        for text in warnings
    )
    assert len(warnings) == 4


class BegunError(Exception):
    """The request is settled, and building would begin."""


def studies(requested: Configuration) -> list[protocol.Command]:
    axes = {"settings.sequence": [16, 32]}
    return [
        protocol.Compare(base=requested, other=requested),
        protocol.Attribute(base=requested, toggles={"precision": "fp32"}),
        protocol.Profile(configurations=[requested, requested]),
        protocol.Validate(configuration=requested),
        protocol.Sweep(base=requested, axes=axes, arms=[{}, {"triton": "off"}]),
    ]


@pytest.mark.parametrize("index", range(5), ids=["ab", "attribute", "profile", "validate", "sweep"])
def test_every_study_tells_once_what_a_preset_leaves_out(index, small):
    command = studies(msgspec.structs.replace(small, toggles=preset("latency")))[index]
    notes = []

    def send(message):
        if not isinstance(message, protocol.Note):
            raise BegunError
        notes.append(message)

    def begin(*situations):
        raise BegunError

    arms = SimpleNamespace(keep_only=begin)
    context = SimpleNamespace(device=CPU, wire=SimpleNamespace(send=send), variants=arms, studies=0)
    context.resolve = partial(RunnerContext.resolve, context)
    with pytest.raises(BegunError):
        RUNS[type(command)](context, command).execute()
    assert {note.kind for note in notes} == {"warning"}
    assert len({note.text for note in notes}) == len(notes) == 4


def test_blocked_is_what_the_toggles_say(monkeypatch):
    """A reason that a toggle gives is the reason that is told."""
    why = Blocked("the moon is full", "Wait.")
    toggle = dataclasses.replace(all_toggles()["rope_cache"], blocked=lambda *_: why)
    monkeypatch.setitem(all_toggles(), "rope_cache", toggle)
    left = {option.toggle: option for option in settled(preset("low-memory")).left_out}[
        "rope_cache"
    ]
    assert (left.option, left.reason, left.fix) == ("shared", why.reason, why.fix)


@pytest.mark.parametrize(("batch", "sequence"), [(1, 128), (8, 512), (64, 512)])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_usable_loss_needs_less_memory_than_that_of_the_preset(family, device, batch, sequence):
    if family == "mahia":
        sequence = 128
    requested = Configuration(
        family=family,
        preset=list(FAMILIES[family].presets)[1],
        workload="train",
        settings={"batch": batch, "sequence": sequence},
    )
    toggle = all_toggles()["fused_loss"]

    def needed(option: str) -> int:
        toggles = {name: o.partition(OR)[0] for name, o in preset("low-memory").items()}
        changed = msgspec.structs.replace(requested, toggles=toggles | {"fused_loss": option})
        situation = resolve.resolve(changed, CPU)
        situation = dataclasses.replace(situation, device=torch.device(device))
        return footprint(situation).total

    with hardware.imagined((9, 0)):
        usable = ["off", "triton", "triton_small", "chunked"] if device == "cuda" else []
        bytes_by_option = {option: needed(option) for option in usable or ["off", "chunked"]}
    chosen = next((o for o in toggle.presets["low-memory"] if o in bytes_by_option), toggle.off)
    assert bytes_by_option[chosen] == min(bytes_by_option.values()), bytes_by_option
