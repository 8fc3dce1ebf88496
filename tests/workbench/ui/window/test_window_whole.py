"""The whole window with its real plots: a live run, a comparison, a picture on the clipboard."""

from __future__ import annotations

from fake_session import session
from PySide6.QtGui import QGuiApplication

from workbench.ui.controllers.appearance import Appearance
from workbench.ui.panels.compare import ComparePanel
from workbench.ui.panels.live import LivePanel
from workbench.ui.window import MainWindow


def test_a_run_is_drawn_compared_and_copied_in_one_window(qapp, qtbot, state, settings):
    settings.theme = "dark"
    window = MainWindow(state, settings, Appearance(qapp, state, settings))
    window.show()
    qtbot.waitExposed(window)
    assert isinstance(window.live, LivePanel) and isinstance(window.compare, ComparePanel)
    state.start_runner()
    qtbot.waitUntil(lambda: state.runner_state == "idle", timeout=10_000)
    state.start()
    qtbot.waitUntil(lambda: state.runner_state == "running")
    qtbot.waitUntil(lambda: state.session.segments[0].steps.rows > 30, timeout=10_000)
    assert window.live.shown
    QGuiApplication.clipboard().clear()
    window.actions_["copy-image"].trigger()
    picture = QGuiApplication.clipboard().image()
    colours = {picture.pixel(x, y) for x in range(0, picture.width(), 3) for y in range(0, 300, 3)}
    assert len(colours) > 20

    state.compared.add(session("another"))
    qtbot.waitUntil(lambda: window.compare.isVisible())
    window.set_theme("light")
    state.stop()
    qtbot.waitUntil(lambda: state.runner_state == "idle")
    assert not state.failures
    window.close()
    window.deleteLater()
