"""A window on Qt's offscreen platform, with a fake runner and settings and journals of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from hang_limit import HANG_S
from PySide6.QtWidgets import QWidget

sys.path.insert(0, str(Path(__file__).parent))

from fake_session import messages
from shown_window import opened

from sessions.model import Session
from workbench.client import runner_process
from workbench.client.recorder import Recorder
from workbench.client.runner_process import Runner
from workbench.ui import panel_list
from workbench.ui.connection import runner_link
from workbench.ui.controllers import run_control
from workbench.ui.panels.lazy_panel import LazyPanel
from workbench.ui.settings import Settings
from workbench.ui.workspace import Workspace

FAKE_RUNNER = (sys.executable, str(Path(__file__).with_name("fake_runner.py")))


@pytest.fixture(autouse=True)
def hold(tmp_path, monkeypatch):
    """While this file is there, the fake runner leaves what it measures half done."""
    monkeypatch.setenv("FAKE_RUNNER_HOLD", str(tmp_path / "hold"))
    return tmp_path / "hold"


@pytest.fixture(autouse=True)
def no_runner_hangs(monkeypatch):
    """The fake runner may have to wait for a core, before it answers and before it ends."""
    monkeypatch.setattr(runner_link, "ANSWER_S", HANG_S)
    monkeypatch.setattr(runner_process, "GRACE_S", HANG_S)


@pytest.fixture
def impatient(no_runner_hangs, monkeypatch):
    """A runner that does not react to Cancel or does not end is soon ended by force."""
    monkeypatch.setattr(run_control, "PATIENCE_MS", 100)
    monkeypatch.setattr(runner_process, "GRACE_S", 0.3)


@pytest.fixture
def settings(tmp_path):
    return Settings(tmp_path / "settings.ini")


@pytest.fixture
def workspace(qapp):
    workspace = Workspace(launch=lambda journal: Runner(journal, FAKE_RUNNER))
    yield workspace
    workspace.close()


@pytest.fixture
def panel(qtbot, workspace, settings):
    """The toggles alone, without a window around them, once the fake runner is idle."""
    workspace.verdict_prompt.keep_in(settings)
    workspace.presets.keep_in(settings)
    panel = panel_list.toggles(workspace)
    qtbot.addWidget(panel)
    panel.show()
    workspace.run.start_runner()
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    qtbot.waitUntil(lambda: workspace.configuration.availability is not None)
    return panel


class OnceSeen(LazyPanel):
    """Makes its panel when it comes to the front: of a dock behind another Qt paints nothing."""

    def showEvent(self, event):
        QWidget.showEvent(self, event)

    def paintEvent(self, event):
        super().paintEvent(event)
        if self._panel is None and not self._timer.isActive():
            self._timer.start(0)


@pytest.fixture
def window(qapp, qtbot, workspace, settings, monkeypatch):
    """The window without the plots, which have tests of their own and load slowly."""
    monkeypatch.setattr("workbench.ui.panel_list.LazyPanel", OnceSeen)
    monkeypatch.setattr("workbench.ui.panel_list.live", lambda workspace: QWidget())
    monkeypatch.setattr("workbench.ui.panel_list.compare", lambda workspace: QWidget())
    with opened(qapp, workspace, settings) as window:
        yield window


@pytest.fixture
def complete_window(window):
    """The window with every panel made, those that lie behind another too."""
    for dock in window.dock_area.docks.values():
        if isinstance(dock.widget(), LazyPanel):
            dock.widget().panel()
    return window


@pytest.fixture
def ready(qtbot, window):
    """The window once the fake runner has told what it has and is idle."""
    window.workspace.run.start_runner()
    qtbot.waitUntil(lambda: window.workspace.run.state == "idle")
    qtbot.waitUntil(lambda: window.workspace.configuration.availability is not None)
    return window


@pytest.fixture
def judged(workspace):
    """A session with three verdicts on arms of long names."""
    recorder = Recorder(Session(title="judged"))
    for message in messages("verdict"):
        recorder.record(message)
    workspace.session.shown = recorder.session
    comparisons = workspace.session.shown.comparisons
    comparisons += [msgspec.structs.replace(comparisons[0]) for _ in range(3 - len(comparisons))]
    return workspace.session.shown


@pytest.fixture
def large_type(ready):
    """The window in type of 14 points; the font of the application is restored."""
    before = ready.appearance.font_points
    ready.appearance.choose_font(14)
    yield ready
    ready.appearance.choose_font(before)
