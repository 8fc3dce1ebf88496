"""Tests of choosing a model of one's own: its file, the fields that apply, its name."""

import msgspec
from fake_session import session
from PySide6.QtCore import QMimeData, QPoint, Qt, QUrl
from PySide6.QtGui import QDropEvent
from PySide6.QtWidgets import QComboBox, QLabel, QLineEdit, QPushButton

from sessions.tables import segments_table
from workbench.protocol import Availability
from workbench.ui.panels._own_model import CONTRACT, file_title
from workbench.ui.panels._segment_model import condensed
from workbench.ui.state import config_edit


def build(window):
    return window.dock_area.docks["build"].widget()


def with_own_family(window):
    """Let the fake runner's catalogue offer models from files."""
    configuration = window.workspace.configuration
    catalogue = configuration.catalogue
    (first, *_) = catalogue.families
    fields = [msgspec.structs.replace(first.fields[0], name="source", title="File", default="")]
    own = msgspec.structs.replace(
        first, name=config_edit.OWN, title="Own model", presets=first.presets, fields=fields
    )
    configuration.catalogue = msgspec.structs.replace(
        catalogue, families=[*catalogue.families, own]
    )
    configuration.catalogueChanged.emit()
    window.actions_.refresh()


def test_a_dropped_python_file_becomes_the_model(ready, tmp_path):
    with_own_family(ready)
    path = tmp_path / "mine.py"
    path.write_text("def build(): ...")
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(path))])
    copy, none = Qt.DropAction.CopyAction, Qt.KeyboardModifier.NoModifier
    ready.dropEvent(QDropEvent(QPoint(), copy, data, Qt.MouseButton.LeftButton, none))
    edited = ready.workspace.configuration.edited
    assert (edited.family, edited.model) == ("own", {"source": str(path)})
    assert build(ready).findChild(QLineEdit, "own-model-path").text() == str(path)


def test_the_form_has_a_browse_button_the_contract_and_only_what_applies(ready, monkeypatch):
    with_own_family(ready)
    monkeypatch.setattr("workbench.ui.dialogs.runner_files.existing", lambda *_: "/models/other.py")
    configuration = ready.workspace.configuration
    configuration.edit(
        config_edit.with_own_model(configuration.catalogue, configuration.edited, "mine.py")
    )
    panel = build(ready)
    assert panel._own_model_row.isVisible() and "build()" in CONTRACT
    assert not panel.findChild(QComboBox, "preset").isVisible()
    assert panel.findChild(QLineEdit, "field-sha256") is None
    panel.findChild(QPushButton, "own-model-browse").click()
    assert configuration.edited.model == {"source": "/models/other.py"}
    configuration.edit(
        config_edit.with_family(
            configuration.catalogue, configuration.edited, configuration.catalogue.families[0].name
        )
    )
    assert not panel._own_model_row.isVisible() and panel.findChild(QComboBox, "preset").isVisible()


def problem_line(window, configuration, problem) -> QLabel:
    """Let the runner refuse the configuration, and return the line that says why."""
    model = window.workspace.configuration
    model.availability = Availability(configuration=configuration, blocked={}, problems=[problem])
    model.availabilityChanged.emit()
    return build(window).findChildren(QLabel, "problem")[-1]


def test_until_a_file_is_chosen_the_form_asks_for_it_and_reports_no_error(ready):
    with_own_family(ready)
    configuration = ready.workspace.configuration
    changed = config_edit.with_family(configuration.catalogue, configuration.edited, "own")
    configuration.edit(changed)
    line = problem_line(ready, changed, "own: no file is given")
    assert line.text() == "Choose the file of your model: browse for it, or drop it on the window."
    assert line.property("tone") == "accent"
    named = msgspec.structs.replace(changed, model={"source": "missing.py"})
    configuration.edit(named)
    line = problem_line(ready, named, "no such file")
    assert (line.text(), line.property("tone")) == ("no such file", "bad")


def test_fields_that_say_nothing_about_a_file_are_left_out():
    applies = config_edit.applies
    assert not applies("own", "settings", "sequence") and not applies("own", "model", "sha256")
    assert applies("hydra", "settings", "sequence") and applies("own", "settings", "batch")


def test_a_sweep_of_it_varies_only_what_applies(ready):
    """Its first field was the sequence, with values that every point refused."""
    with_own_family(ready)
    configuration, sweeps = ready.workspace.configuration, ready.workspace.sweeps
    assert sweeps.fields[0] == "settings.sequence"
    configuration.edit(
        config_edit.with_own_model(configuration.catalogue, configuration.edited, "mine.py")
    )
    assert not {"settings.sequence", "model.source", "model.sha256"} & sweeps.offered().keys()
    assert sweeps.fields[0] in sweeps.offered() and sweeps.points() > 1


def test_a_model_of_ones_own_is_named_by_its_file_and_not_by_its_hash(ready):
    shown = session()
    for number, segment in enumerate(shown.segments):
        source = "/models/mine.py:build" if number < 2 else "/models/other.py:small"
        segment.configuration = msgspec.structs.replace(
            segment.configuration,
            family="own",
            model={"source": source, "sha256": f"{number:064x}"},
        )
    cells = condensed(segments_table(shown, 0), 0, ready.workspace.session.titles).cells
    assert cells[1][1].startswith("File: edited")
    assert "File: other.py:small" in cells[2][1]
    assert not any("0000" in row[1] for row in cells)
    assert file_title("a/b.py") == "b.py"
