"""An attribution's arms say what computed their experts, and which ranks their heads have."""

from __future__ import annotations

import msgspec
import pytest
from built_arms import CPU, configuration, stepped
from recording_wire import RecordingWire
from test_attribute_run import attribute

from sessions.studies.attribution.words import rows
from workbench.claims import adaattn, moe
from workbench.claims._claim import Results, Unmeasured
from workbench.claims._read import memory_share, speed_up, with_effect
from workbench.runner.building.paths import path_text
from workbench.runner.catalogue import catalogue
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.paired import interleaving


@pytest.fixture
def attributed(monkeypatch):
    monkeypatch.setattr(interleaving, "WARM_UP_S", 0.1)

    def attributed(base, toggles):
        study, _ = attribute(RunnerContext(RecordingWire(), CPU), base, toggles)
        return study

    return attributed


def path_of(arm):
    return path_text(arm.record.usage, arm.situation.config, arm.model)


@pytest.mark.parametrize("option", ["grouped", "padded", "loop", "dense"])
def test_experts_that_are_chosen_by_name_are_the_path(option):
    arm = stepped(configuration("moe", toggles={"triton_moe_experts": option}))
    assert path_of(arm) == f"moe_experts by {option}"


def test_torchs_standard_experts_are_named_by_what_ran():
    arm = stepped(configuration("moe", toggles={"triton": "off"}))
    (ran,) = arm.record.usage["moe_experts"]
    assert ran != "torch" and path_of(arm) == f"moe_experts by {ran}"


def test_a_model_with_neither_has_no_path():
    assert path_of(stepped(configuration("hydra"))) == ""


def test_the_narrow_heads_of_the_experiment_reduce_their_ranks():
    (command,) = adaattn._attention(256, narrow=True)(catalogue(CPU, 0.0), 1.0)
    settings = {"batch": 1, "sequence": 16}
    base = msgspec.structs.replace(command.base, settings=settings)
    arm = stepped(msgspec.structs.replace(base, toggles={**base.toggles, **command.toggles}))
    assert path_of(arm).startswith("0 of 4 heads compute with fewer than 32 columns: ")
    with arm.entered():
        for _ in range(arm.steps_to_settle()):
            arm.step()
    assert path_of(arm).startswith("3 of 4 heads compute with fewer than 32 columns: ")
    arm = stepped(base)
    assert path_of(arm) == ""


def test_each_rung_of_the_ladder_of_experts_shows_its_path(attributed):
    (command,) = moe._inference(catalogue(CPU, 0.0), 0.3)
    base = msgspec.structs.replace(command.base, settings={"batch": 1, "sequence": 16})
    study = attributed(base, {"triton_moe_experts": "dense"})
    paths = [row["path"] for row in rows(study, "arms")]
    assert paths[1] == "moe_experts by dense" and paths[0] not in ("", paths[1])
    for read in (speed_up("triton_moe_experts"), speed_up()):
        note = read(Results(None, [], [study])).note
        assert "+ triton_moe_experts=dense: moe_experts by dense; " in note
        assert note.endswith(f"base: {paths[0]}")
    with pytest.raises(Unmeasured):  # on the CPU nothing counts memory
        memory_share()(Results(None, [], [study]))


def test_heads_of_full_rank_measure_no_claim_about_narrow_ones(attributed):
    fields = {"n_layers": 1, "refresh_every": 1}
    base = configuration("adaattn", model=fields, toggles={"adaptive_rank": "off"})
    study = attributed(base, {"adaptive_rank": "on"})
    _, row = rows(study, "arms")
    assert row["path"] == "0 of 4 heads compute with fewer than 32 columns: 4 heads of rank 32"
    with pytest.raises(Unmeasured, match="no rank was reduced"):
        with_effect("adaptive_rank", speed_up())(Results(None, [], [study]))
