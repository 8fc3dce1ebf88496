"""One file is enough for a toggle: conflicts, estimate, fixes, presets, evidence and help."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from built_arms import CPU, blocked, configuration, evidence_of, stepped
from example_toggle import ENTERED, TOGGLE

from workbench import protocol
from workbench.runner import suggested_fixes, toggles
from workbench.runner.config import presets
from workbench.runner.config.estimate import footprint
from workbench.runner.config.resolve import availability, resolve
from workbench.runner.context import make_predictor
from workbench.runner.toggles import Alternative, all_toggles

ON = {TOGGLE.name: "on"}


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """Add the file's toggle to those of this process."""
    monkeypatch.setitem(all_toggles(), TOGGLE.name, TOGGLE)
    ENTERED.clear()


def test_the_catalogue_has_its_options_and_help():
    info = TOGGLE.info(CPU)
    assert [option.name for option in info.options] == ["off", "on"]
    assert info.help.startswith("Count the calls") and info.default == "off"


def test_it_is_available_and_off_by_default():
    answer = availability(configuration("hydra"), CPU)
    assert answer.toggles[TOGGLE.name] == "off" and TOGGLE.name not in answer.blocked
    assert availability(configuration("hydra", toggles=ON), CPU).problems == []


def test_a_conflict_is_shown_by_both_toggles():
    compiled = configuration("hydra", toggles={"compile": "default"})
    why = blocked(compiled, TOGGLE.name, "on")
    assert (why.reason, why.set) == ("torch.compile hides the calls", {"compile": "off"})
    why = blocked(configuration("hydra", toggles=ON), "compile", "default")
    assert why.reason == "cannot be combined with Counting: torch.compile hides the calls"
    assert why.set == {TOGGLE.name: "off"}


def test_its_trait_blocks_toggles_that_know_nothing_of_it():
    why = blocked(configuration("moe", "train", toggles=ON), "expert_parallel", "2")
    assert why.set == {TOGGLE.name: "off"} or "needs 2 CPU cores" in why.reason


def test_its_arguments_change_the_estimate_of_memory():
    sizes = {"batch": 2, "sequence": 32}
    plain = configuration("hydra", "train", **sizes)
    counting = configuration("hydra", "train", **sizes, toggles=ON)
    full = configuration("hydra", "train", **sizes, toggles={"checkpointing": "full"})
    estimates = [footprint(resolve(wanted, CPU)) for wanted in (plain, counting, full)]
    assert estimates[1] == estimates[2] != estimates[0]


def test_its_fix_is_suggested_first_if_its_order_is_the_smallest():
    failure = protocol.Failure(kind="out-of-memory", sentence="Out of memory.", fix="")
    cured = suggested_fixes.with_fix(failure, configuration("hydra", "train"), CPU)
    assert cured.set == ON
    assert cured.fix == "Set Counting to On: nothing is saved, but counted."


def test_a_preset_that_it_names_switches_it_on():
    preferred = {preset.name: preset.toggles[TOGGLE.name] for preset in presets.all_presets()}
    assert preferred.pop("development") == "on|off"
    assert set(preferred.values()) == {"off"}


def test_a_step_with_it_is_not_predicted_for_its_reason():
    predictor = make_predictor(SimpleNamespace(device=CPU, ceilings=None))
    counting = resolve(configuration("hydra", toggles=ON), CPU)
    assert predictor.least(counting).why == TOGGLE.unpredictable


def test_the_evidence_comes_from_its_file():
    arm = stepped(configuration("hydra", toggles=ON))
    evidence = evidence_of(arm, TOGGLE.name)
    assert evidence.status == "effective" and evidence.text.endswith(" calls")


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        ({"traits": {"half": ()}}, "half"),
        ({"alternatives": {"none": (Alternative("Wait.", ON),)}}, "none"),
        ({"presets": {"latency": ("fast",)}}, "fast"),
    ],
)
def test_a_field_that_names_no_option_is_refused(fields, option):
    with pytest.raises(ValueError, match=f"it has no option '{option}'"):
        toggles._check(dataclasses.replace(TOGGLE, **fields))


def test_every_toggle_names_only_options_that_it_has():
    for toggle in all_toggles().values():
        toggles._check(toggle)
