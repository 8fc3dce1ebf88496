"""Toggles that change the model's configuration: another model is built, which proves it."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
import torch
from built import stepped
from measuring_family import FAMILY
from runner_driver import Driver

import models
from models import hydra
from sessions.model import Configuration
from workbench import protocol
from workbench.runner.building import variant_cache
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config import resolve
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.toggles import all_toggles
from workbench.runner.variants import fake_step

FIELDS = (
    "ccgqa", "mixture_of_depths", "mixture_of_recursions", "attention_every", "adaptive_rank",
    "adaptive_precision", "use_fourier",
)  # fmt: skip
CPU = torch.device("cpu")
PARAMETERS = 2 * 64 + 24


def measuring(**changes) -> Configuration:
    return Configuration(family="measuring", preset="tiny", workload="train", **changes)


@pytest.fixture
def family(monkeypatch):
    """The test family among the others of this process."""
    monkeypatch.setitem(models.FAMILIES, "measuring", FAMILY)


def situation(configuration: Configuration):
    return resolve.resolve(configuration, CPU)


@pytest.mark.parametrize("name", FIELDS)
def test_each_is_there_follows_the_model_first_and_is_blocked_where_there_is_no_field(name, family):
    toggle = all_toggles()[name]
    assert toggle.off == "follow" and toggle.default_option(CPU) == "follow"
    blank = dataclasses.replace(
        situation(measuring()), family=dataclasses.replace(FAMILY, title="Blank"), config=object()
    )
    for option in list(toggle.options)[1:]:
        why = toggle.blocked(option, blank)
        assert why.reason == f"Blank has no {name}"
        owned = name in ("use_fourier", "attention_every")
        assert ("Measuring" in why.fix) == owned and why.fix.endswith(".")


def test_options_become_fields_and_the_first_leaves_the_model_alone(family):
    config = situation(measuring(toggles={"use_fourier": "on", "attention_every": "2"})).config
    assert (config.use_fourier, config.attention_every) == (True, 2)
    built = situation(measuring(model={"use_fourier": True}, toggles={"use_fourier": "off"}))
    assert (built.config.use_fourier, built.base.use_fourier) == (False, True)
    assert situation(measuring(model={"use_fourier": True})).config.use_fourier


def test_a_value_that_the_family_refuses_is_blocked_with_its_sentence(family):
    requested = measuring(toggles={"attention_every": "4"})
    answer = resolve.availability(requested, CPU)
    why = answer.blocked["attention_every"]
    assert why["4"].reason == "measuring: attention_every = 4 is more than n_layers = 2"
    assert "outside of 0 to 4" in why["8"].reason
    assert "2" not in why
    (problem,) = answer.problems
    assert "toggle attention_every=4 cannot be used: measuring: attention_every = 4" in problem
    wider = msgspec.structs.replace(requested, model={"n_layers": 4})
    assert resolve.availability(wider, CPU).problems == []


def test_the_real_runner_builds_the_other_model_and_goes_back_without_a_build(
    with_families: Driver,
):
    driver = with_families
    driver.start(measuring(seed=3))
    driver.until_steps(2)
    first = len(driver.session.segments) - 1
    for toggles in ({"use_fourier": "on"}, {"attention_every": "2"}, {"use_fourier": "off"}):
        driver.apply(toggles)
        driver.until_steps(2)
    driver.send(protocol.Apply(toggles={"use_fourier": "follow", "attention_every": "follow"}))
    back = driver.until(protocol.SegmentStarted)
    driver.until_steps(2)
    driver.finish(protocol.Stop())
    plain, fourier, both, attention, _ = driver.session.segments[first:]
    counts = [s.ledger["parameters"] for s in (plain, fourier, both, attention)]
    assert counts == [PARAMETERS, PARAMETERS + 64, PARAMETERS + 128, PARAMETERS + 64]
    (evidence,) = fourier.evidence
    assert (evidence.toggle, evidence.status) == ("use_fourier", "effective"), evidence.text
    assert evidence.text.startswith(
        "compared with use_fourier = False: 4 Linear instead of 3; 216 parameters instead of 152"
    )
    texts = {evidence.toggle: (evidence.status, evidence.text) for evidence in attention.evidence}
    assert texts["use_fourier"][0] == "as default" and texts["attention_every"][0] == "effective"
    shown = "the model's fields already have this value; compared with "
    assert texts["use_fourier"][1].startswith(shown)
    assert back.reused
    assert "Fourier mixing: On" in fourier.label


def test_each_structure_trains_on_from_its_own_weights(family):
    variants, phases = VariantCache(), PhaseTracker(lambda phase: None)

    def train(option: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        variant = variants.get(situation(measuring(toggles={"use_fourier": option})), phases)
        before = [p.detach().clone() for p in variant.model.parameters()]
        variant.step()
        return before, [p.detach().clone() for p in variant.model.parameters()]

    fresh, trained = train("off")
    train("on")
    again, _ = train("off")
    assert not all(map(torch.equal, fresh, trained))
    assert all(map(torch.equal, trained, again))


def test_a_refused_option_leaves_the_run_as_it_is(with_families: Driver):
    driver = with_families
    driver.start(measuring())
    driver.until_steps(1)
    segments = len(driver.session.segments)
    for toggles, reason in (
        ({"attention_every": "4"}, "attention_every = 4 is more than n_layers = 2"),
        ({"ccgqa": "on"}, "Measuring has no ccgqa"),
    ):
        driver.send(protocol.Apply(toggles=toggles))
        failure = driver.until(protocol.Failure)
        assert failure.kind == "mistake" and reason in failure.sentence
    driver.until_steps(2)
    assert len(driver.session.segments) == segments
    driver.finish(protocol.Stop())


def test_a_field_that_changes_nothing_in_the_model_is_told(family, monkeypatch):
    deaf = dataclasses.replace(
        FAMILY, construct=lambda c: FAMILY.construct(dataclasses.replace(c, use_fourier=False))
    )
    monkeypatch.setitem(models.FAMILIES, "measuring", deaf)
    arms = VariantCache()
    built = arms.get(
        situation(measuring(toggles={"use_fourier": "on"})), PhaseTracker(lambda phase: None)
    )
    (evidence,) = built.find_evidence()
    assert evidence.status == "no effect"
    assert evidence.text == "outputs and operators are identical to those with use_fourier = False"


def test_weights_of_other_structures_make_room_when_memory_is_short(family, monkeypatch):
    arms, phases = VariantCache(), PhaseTracker(lambda phase: None)
    for option in ("on", "off"):
        arms.get(situation(measuring(toggles={"use_fourier": option})), phases)
    assert len(arms._weights) == 2
    monkeypatch.setattr(variant_cache, "is_short", lambda device: True)
    arms.get(situation(measuring(toggles={"use_fourier": "off", "precision": "bf16"})), phases)
    assert len(arms._weights) == 2  # FP32 and BF16 of the same structure
    assert arms.count == 1


def test_hydra_is_what_it_was(small):
    assert resolve.resolve(small, CPU).config == hydra.FAMILY.configure("tiny", small.model)


def test_the_step_of_a_variant_is_counted_once_for_all_of_its_fields(monkeypatch):
    counted = []
    count = fake_step.count
    monkeypatch.setattr(
        fake_step,
        "count",
        lambda situation, toggles: counted.append(situation.config) or count(situation, toggles),
    )
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 2, "n_kv_heads": 2, "max_sequence": 64}
    tiny = Configuration(
        family="hydra", preset="tiny", model=sizes, settings={"batch": 1, "sequence": 16}
    )
    variant = stepped(tiny, ccgqa="on", mixture_of_depths="on")
    variant.find_evidence()
    config = variant.situation.config
    assert len(counted) == 3 and counted.count(config) == 1
    assert all(finding.status == "effective" for finding in variant.evidence)
