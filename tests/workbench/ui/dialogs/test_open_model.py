"""A model of one's own in the window: File, Open model ..., and the Build panel that shows it."""

from __future__ import annotations

import msgspec
import pytest
from PySide6.QtWidgets import QFileDialog, QLabel

from workbench import protocol
from workbench.ui import panel_list
from workbench.ui.panels._own_model import CONTRACT
from workbench.ui.state import config_edit

OWN = protocol.FamilyInfo(
    name="own",
    title="Own model",
    help="",
    fields=[
        protocol.Field(name="source", title="File", help="", default=""),
        protocol.Field(name="sha256", title="SHA-256", help="", default=""),
    ],
    presets={"file": {"source": "", "sha256": ""}},
    parameters={},
    suggested={"file": {"batch": 4, "sequence": 1}},
    workloads=["forward", "train"],
    default_preset="file",
)


@pytest.fixture
def offering(ready):
    """The window over a runner that takes models from files."""
    workspace = ready.workspace
    workspace.configuration.catalogue.families.append(OWN)
    workspace.configuration.catalogueChanged.emit()
    workspace.run.stateChanged.emit()
    return ready


def test_without_such_a_runner_the_action_says_why(ready):
    action = ready.actions_["open-model"]
    assert not action.isEnabled() and "cannot load models from files" in action.toolTip()


def test_choosing_a_file_chooses_its_model_with_nothing_switched_on(offering, qtbot, monkeypatch):
    workspace = offering.workspace
    workspace.configuration.choose({"precision": "amp_bf16"}, "BF16")
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: ("/models/mine.py", ""))
    action = offering.actions_["open-model"]
    assert action.isEnabled() and action.text() == "Open model …"
    assert action in offering.actions_.menus["File"].actions()
    action.trigger()
    chosen = workspace.configuration.edited
    assert (chosen.family, chosen.preset, chosen.model) == (
        *("own", "file", {"source": "/models/mine.py"}),
    )
    assert chosen.workload in OWN.workloads and chosen.settings["batch"] == 4
    firsts = {
        toggle.name: toggle.options[0].name for toggle in workspace.configuration.catalogue.toggles
    }
    assert chosen.toggles == firsts
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: ("", ""))
    action.trigger()  # and cancelled
    assert workspace.configuration.edited is chosen


def test_the_build_panel_shows_the_file_and_counts_nothing_before_it_is_built(offering, qtbot):
    workspace = offering.workspace
    workspace.configuration.edit(
        config_edit.with_own_model(
            workspace.configuration.catalogue, workspace.configuration.edited, "/models/mine.py"
        )
    )
    panel = panel_list.build(workspace)
    qtbot.addWidget(panel)
    panel.show()
    texts = [label.text() for label in panel.findChildren(QLabel)]
    assert "Parameters are counted when it is built." in texts
    assert CONTRACT in texts
    assert workspace.configuration.edited.model == {"source": "/models/mine.py"}


RAN = {"source": "/models/mine.py:build", "sha256": "e961dd3d"}


@pytest.mark.parametrize(
    ("fields", "same"),
    [
        ({"source": "/models/mine.py"}, True),
        ({"source": "mine.py:build", "sha256": ""}, True),
        ({"source": "~/mine.py", "sha256": "e961dd3d"}, True),
        ({"source": "/models/mine.py:small"}, False),
        ({"source": "/models/other.py"}, False),
        ({"source": "/models/mine.py", "sha256": "other"}, False),
    ],
)
def test_what_ran_is_known_again_though_the_runner_filled_in_what_the_file_was(
    offering, fields, same
):
    workspace = offering.workspace
    edited = config_edit.with_own_model(
        workspace.configuration.catalogue, workspace.configuration.edited, ""
    )
    ran, edited = (msgspec.structs.replace(edited, model=model) for model in (RAN, fields))
    assert config_edit.ran_as(edited, ran) == same
    assert config_edit.other_parts(edited, ran) == ([] if same else ["model fields"])


def test_the_configuration_before_is_never_the_one_that_runs_now(offering):
    workspace = offering.workspace
    plain = config_edit.with_own_model(
        workspace.configuration.catalogue, workspace.configuration.edited, "/models/mine.py"
    )
    workspace.configuration.edit(plain)
    for number, precision in enumerate(("fp32", "amp_bf16")):
        workspace.configuration.edit(config_edit.with_toggles(plain, {"precision": precision}))
        ran = msgspec.structs.replace(workspace.configuration.edited, model=RAN)
        begun = protocol.SegmentStarted(index=number, configuration=ran, label="")
        workspace.session.recorder.record(begun)
        before = workspace.verdicts.before()
        assert before is None if not number else before.toggles["precision"] == "fp32"


@pytest.mark.parametrize(
    ("source", "is_same"),
    [
        ("hf:small/config.json:tiny,sequence=64", True),
        ("hf:small/config.json:tiny", False),
        ("hf:gpt2", False),
    ],
)
def test_a_hugging_face_model_that_ran_is_known_by_its_path_and_options(offering, source, is_same):
    configuration = offering.workspace.configuration
    edited = config_edit.with_own_model(configuration.catalogue, configuration.edited, source)
    model = {"source": "hf:/models/small/config.json:tiny,sequence=64", "sha256": "e961dd3d"}
    ran = msgspec.structs.replace(edited, model=model)
    assert config_edit.ran_as(edited, ran) == is_same
