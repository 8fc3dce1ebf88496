"""The whole window with its real plots: a live run, a comparison, a picture on the clipboard."""

from __future__ import annotations

from fake_session import session
from PySide6.QtGui import QGuiApplication
from shown_window import opened

from workbench.ui.panels.compare import ComparePanel
from workbench.ui.panels.live import LivePanel


def test_a_run_is_drawn_compared_and_copied_in_one_window(qapp, qtbot, workspace, settings):
    with opened(qapp, workspace, settings) as window:
        assert isinstance(window.live, LivePanel) and isinstance(window.compare, ComparePanel)
        workspace.run.start_runner()
        qtbot.waitUntil(lambda: workspace.run.state == "idle")
        workspace.runs.start()
        qtbot.waitUntil(lambda: workspace.run.state == "running")
        qtbot.waitUntil(lambda: workspace.session.shown.segments[0].steps.rows > 30)
        assert window.live.shown
        QGuiApplication.clipboard().clear()
        window.actions_["copy-image"].trigger()
        picture = QGuiApplication.clipboard().image()
        colours = {
            picture.pixel(x, y) for x in range(0, picture.width(), 3) for y in range(0, 300, 3)
        }
        assert len(colours) > 20

        workspace.compared.add(session("another"))
        qtbot.waitUntil(lambda: window.compare.isVisible())
        window.set_theme("light")
        workspace.run.stop()
        qtbot.waitUntil(lambda: workspace.run.state == "idle")
        assert not workspace.failures.recent
