"""A window on Qt's offscreen platform, with a fake runner and settings and journals of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from PySide6.QtWidgets import QWidget

sys.path.insert(0, str(Path(__file__).parent))

from shown_window import opened

from workbench.client.runner_process import Runner
from workbench.ui.panels.lazy_panel import Later
from workbench.ui.panels.toggles import TogglesPanel
from workbench.ui.settings import Settings
from workbench.ui.state import AppState

FAKE = (sys.executable, str(Path(__file__).parent / "fake_runner.py"))


@pytest.fixture(autouse=True)
def hold(tmp_path, monkeypatch):
    """While this file is there, the fake runner leaves what it measures half done."""
    monkeypatch.setenv("FAKE_RUNNER_HOLD", str(tmp_path / "hold"))
    return tmp_path / "hold"


@pytest.fixture
def settings(tmp_path):
    return Settings(tmp_path / "settings.ini")


@pytest.fixture
def state(qapp):
    state = AppState(launch=lambda journal: Runner(journal, FAKE))
    yield state
    state.close()


@pytest.fixture
def panel(qtbot, state, settings):
    """The toggles alone, without a window around them, once the fake runner is idle."""
    state.offers.keep_in(settings)
    state.presets.keep_in(settings)
    panel = TogglesPanel(state)
    qtbot.addWidget(panel)
    panel.show()
    state.start_runner()
    qtbot.waitUntil(lambda: state.runner_state == "idle", timeout=10_000)
    qtbot.waitUntil(lambda: state.availability is not None, timeout=5_000)
    return panel


class OnceSeen(Later):
    """Makes its panel when it comes to the front: of a dock behind another Qt paints nothing."""

    def showEvent(self, event):
        QWidget.showEvent(self, event)

    def paintEvent(self, event):
        super().paintEvent(event)
        if self._panel is None and not self._timer.isActive():
            self._timer.start(0)


@pytest.fixture
def window(qapp, qtbot, state, settings, monkeypatch):
    """The window without the plots, which have tests of their own and load slowly."""
    monkeypatch.setattr("workbench.ui.window.Later", OnceSeen)
    monkeypatch.setattr("workbench.ui.window._live", lambda state: QWidget())
    monkeypatch.setattr("workbench.ui.window._compare", lambda state: QWidget())
    with opened(qapp, qtbot, state, settings) as window:
        yield window


@pytest.fixture
def whole(window):
    """The window with every panel made, those that lie behind another too."""
    for dock in window.desk.docks.values():
        if isinstance(dock.widget(), Later):
            dock.widget().panel()
    return window


@pytest.fixture
def ready(qtbot, window):
    """The window once the fake runner has told what it has and is idle."""
    window.state.start_runner()
    qtbot.waitUntil(lambda: window.state.runner_state == "idle", timeout=10_000)
    qtbot.waitUntil(lambda: window.state.availability is not None, timeout=5_000)
    return window
