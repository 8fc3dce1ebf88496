"""The sweep panel: what can be asked for, what is asked, and what is shown as it comes."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel

from sessions.model import Session, Study
from workbench import protocol
from workbench.plots import PLOTS, Run
from workbench.theming import stylesheet
from workbench.theming.theme import DARK, LIGHT
from workbench.ui.state import config_edit


def texts(panel) -> str:
    return "\n".join(label.text() for label in panel.findChildren(QLabel))


@pytest.fixture
def panel(qtbot, ready):
    """The panel once it has taken in what the runner has."""
    qtbot.waitUntil(lambda: ready.sweep.run.isEnabled())
    return ready.sweep


@pytest.fixture
def commands(ready, monkeypatch):
    """Return the list of commands for the runner."""
    commands: list[protocol.Command] = []
    monkeypatch.setattr(
        ready.workspace.measurements, "perform", lambda command, *_: commands.append(command)
    )
    return commands


def test_without_a_sweep_the_panel_says_what_would_fill_it(panel):
    assert panel.empty.isVisibleTo(panel)
    assert "each size is measured under each arm" in texts(panel)


def test_values_are_suggested_around_the_present_ones_until_a_person_types(ready, panel, commands):
    workspace = ready.workspace
    assert workspace.sweeps.values[0] == "256, 512, 1024, 2048, 4096"
    workspace.configuration.edit(
        config_edit.with_setting(workspace.configuration.edited, "sequence", 64)
    )
    assert workspace.sweeps.values[0] == "16, 32, 64, 128, 256"
    panel.values[0].setText("8, 16")
    panel.values[0].textEdited.emit("8, 16")
    workspace.configuration.edit(
        config_edit.with_setting(workspace.configuration.edited, "sequence", 512)
    )
    assert workspace.sweeps.values[0] == "8, 16"
    workspace.sweeps.set_field(0, "preset")
    assert workspace.sweeps.values[0] == "tiny, small, 1b"
    workspace.sweeps.set_field(0, "model.tie")
    assert workspace.sweeps.values[0] == "false, true"


def test_the_runner_is_asked_for_what_the_form_says(qtbot, ready, panel, commands):
    workspace = ready.workspace
    workspace.configuration.set_toggle("triton", "on")
    workspace.sweeps.set_values(0, "128, 256, 512")
    workspace.sweeps.set_field(1, "model.n_layers")
    workspace.sweeps.set_values(1, "2, 4")
    panel.arms["plain"].setChecked(True)
    panel.seconds.setValue(1.5)
    qtbot.waitUntil(lambda: panel.status.text() == "12 points")
    qtbot.mouseClick(panel.run, Qt.MouseButton.LeftButton)
    (command,) = commands
    assert command.base == workspace.configuration.edited and command.seconds == 1.5
    assert command.axes == {"settings.sequence": [128, 256, 512], "model.n_layers": [2, 4]}
    now, plain = command.arms
    assert now == {}
    assert (
        plain["triton"] == "off" and plain.keys() == workspace.configuration.edited.toggles.keys()
    )


def test_presets_of_the_runner_and_of_a_person_can_be_arms(qtbot, ready, panel, commands):
    workspace = ready.workspace
    workspace.presets.own = {"mine": {"triton": "on", "gone": "x"}}
    workspace.presets.changed.emit()
    qtbot.waitUntil(lambda: "mine" in [action.text() for action in panel.presets.menu().actions()])
    entries = {action.text(): action for action in panel.presets.menu().actions()}
    offered = workspace.presets.offered[0]
    entries[offered.title].trigger()
    entries["mine"].trigger()
    qtbot.waitUntil(lambda: panel.status.text() == "15 points")
    assert panel.presets.text() == "Sets (2) ▾"
    qtbot.mouseClick(panel.run, Qt.MouseButton.LeftButton)
    assert commands[0].arms == [{}, offered.toggles, {"triton": "on|off"}], (
        "or off where it cannot be used"
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda s: s.set_values(0, "128,"),
            "Sequence: write values with commas, such as 128, 256.",
        ),
        (lambda s: s.set_values(0, ""), "Sequence: write values with commas, such as 128, 256."),
        (lambda s: s.set_field(1, "settings.sequence"), "Both fields are the same"),
        (lambda s: s.set_arm("now", False), "Choose at least one arm."),
        (lambda s: s.set_arm("before", True), "No other configuration has run yet."),
    ],
)
def test_what_cannot_be_run_says_why_in_text(qtbot, ready, panel, commands, change, sentence):
    change(ready.workspace.sweeps)
    qtbot.waitUntil(lambda: not panel.run.isEnabled())
    assert panel.status.text().startswith(sentence)
    ready.workspace.sweeps.run()
    assert not commands


def test_a_sweep_is_shown_as_it_comes_and_can_be_stopped(qtbot, ready, panel, hold):
    workspace = ready.workspace
    hold.touch()
    workspace.sweeps.set_arm("plain", True)
    qtbot.waitUntil(panel.run.isEnabled)
    qtbot.mouseClick(panel.run, Qt.MouseButton.LeftButton)
    assert workspace.sweeps.why_not() == "A sweep is being measured.", "also before its first row"
    qtbot.waitUntil(lambda: "of 10 points measured" in panel.headline.text())
    assert workspace.sweeps.why_not() == "A sweep is being measured."
    hold.unlink()
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    qtbot.waitUntil(lambda: "10 points; sizes in random order" in panel.headline.text())
    assert panel.run.isEnabled() and not workspace.sweeps.measuring and not workspace.session.saved
    assert panel.points.rowCount() == 10 and panel.fits.rowCount() == 4
    names = [entry.name for entry in panel.charts["sweep_time"].canvas.entries()]
    assert names[0].startswith("defaults: exponent 0.") and len(names) == 2
    assert panel.charts["sweep_map"].reason is not None
    hold.touch()
    qtbot.mouseClick(panel.run, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: workspace.sweeps.measuring)
    workspace.run.stop()
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    assert len(workspace.session.shown.studies) == 2 and not workspace.sweeps.measuring


def test_while_the_first_point_is_measured_the_charts_do_not_say_that_there_is_no_sweep():
    session = Session(studies=[Study("sweep", "batch", 0.0, {"fields": ["settings.batch"]})])
    assert PLOTS["sweep_time"].can_show([Run(session)]) == (
        "No point of the sweep has been measured yet."
    )
    assert PLOTS["sweep_time"].can_show([Run(Session())]).startswith("No sweep was measured")


def test_themes_are_followed(ready, panel):
    for theme in (LIGHT, DARK):
        ready.workspace.theme.set(theme)
        assert all(chart._theme is theme for chart in panel.charts.values())


def test_what_a_sweep_found_stays_off_the_edge_whatever_the_theme_and_its_room(qapp, panel):
    """A theme that came while the sentence had no room took its margins."""
    headline = panel.headline
    headline.resize(100, 3)
    for theme in (LIGHT, DARK):
        panel.setStyleSheet(stylesheet.sheet(theme))
    panel._pages.setCurrentIndex(1)
    panel.grab()
    assert headline.mapTo(panel, headline.contentsRect().topLeft()).x() >= 12
