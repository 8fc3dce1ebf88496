"""The layout of the docks, the themes, and panels without content."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtWidgets import (
    QApplication,
    QDockWidget,
    QLabel,
    QToolButton,
)

from workbench.ui.controllers.appearance import Appearance
from workbench.ui.docks import BUILD_HEIGHT, LEFT_LEAST
from workbench.ui.panels._chart import Chart
from workbench.ui.state import config_edit
from workbench.ui.window import MainWindow


def panel(window, name):
    return window.dock_area.docks[name].widget()


def test_the_layout_is_kept_for_the_next_window_and_can_be_reset(qapp, qtbot, window):
    window.dock_area.docks["events"].close()
    window.dock_area.docks["toggles"].setFloating(True)
    workspace, settings = window.workspace, window.settings
    window.close()
    again = MainWindow(workspace, settings, Appearance(qapp, workspace.theme, settings))
    again.show()
    assert again.dock_area.docks["events"].isHidden()
    assert again.dock_area.docks["toggles"].isFloating()
    again.reset_layout()
    qtbot.waitUntil(lambda: not any(dock.isFloating() for dock in again.dock_area.docks.values()))
    assert again.dock_area.docks["events"] in again.dock_area.tabifiedDockWidgets(
        again.dock_area.docks["segments"]
    )
    again.close()
    again.deleteLater()


def test_a_layout_of_another_version_is_not_restored(settings):
    from PySide6.QtCore import QByteArray

    settings._store.setValue("layout0/docks", QByteArray(b"old"))
    assert settings.layout("docks") is None


def test_the_theme_changes_every_token_at_once(qapp, complete_window):
    window = complete_window
    window.set_theme("light")
    assert window.workspace.theme.current.name == "light"
    docks = window.dock_area.docks.values()
    shown = [dock for dock in docks if not dock.visibleRegion().isEmpty()]
    assert shown and all("#ffffff" in dock.styleSheet() for dock in shown)
    window.set_theme("dark")
    assert window.workspace.theme.current.name == "dark"
    assert not any("#ffffff" in dock.styleSheet() for dock in shown)


@pytest.mark.usefixtures("complete_window")
def test_a_theme_dresses_the_window_alone_and_draws_the_plots_that_are_seen(qapp, window):
    """Widgets of pyqtgraph that belong to no window took 1.3 s of every change."""
    charts = window.findChildren(Chart)
    hidden = {chart: chart.canvas for chart in charts if not chart.isVisible()}
    window.set_theme("light")
    assert qapp.styleSheet() == ""
    assert hidden and all(chart.canvas is canvas for chart, canvas in hidden.items())
    name = next(
        name
        for name, dock in window.dock_area.docks.items()
        for chart in hidden
        if dock.isAncestorOf(chart)
    )
    window.dock_area.bring(name)
    shown = [chart for chart in hidden if chart.isVisible()]
    assert all(chart.canvas.chart_style.theme.name == "light" for chart in shown)
    window.set_theme("dark")


def test_every_empty_panel_says_what_would_fill_it(window):
    later = (window.attribution, window.optimize, window.breakdown, window.checklist, window.sweep)
    made = (window.verdict, window.kernels, *later)
    assert window.claims  # is never empty: it lists what can be measured
    for panel in made:  # now, if they were not yet
        assert panel.empty.isVisibleTo(panel)
    for dock in window.findChildren(QDockWidget):
        if dock.objectName() in ("live", "compare"):
            continue  # theirs are tested with the plots
        texts = [label.text() for label in dock.widget().findChildren(QLabel)]
        assert any(len(text) > 30 for text in texts), dock.objectName()


def test_the_forms_are_as_wide_after_many_resizes_as_before(qtbot, window):
    window.resize(1280, 800)
    window.reset_layout()
    build = window.dock_area.docks["build"]
    qtbot.waitUntil(lambda: LEFT_LEAST < build.width() < 480)  # the default is a third
    before = build.width()
    for height in (*range(780, 600, -20), 800):  # as a banner comes and goes, or a drag goes on
        window.resize(1280, height)
        qtbot.waitUntil(lambda height=height: window.dock_area.height() < height)
    assert abs(build.width() - before) <= 2
    for size in ((700, 500), (1280, 800)):
        window.resize(*size)
        qtbot.waitUntil(lambda size=size: window.dock_area.width() == size[0])
    QCoreApplication.processEvents()
    assert abs(build.width() - before) <= 2


def test_the_forms_do_not_take_most_of_a_window_that_becomes_smaller(qtbot, window):
    window.resize(1440, 900)
    window.reset_layout()
    docks, width = window.dock_area.docks, window.dock_area.width
    qtbot.waitUntil(lambda: 400 < docks["build"].width() <= 480)
    before = docks["build"].width()
    window.resize(900, 600)
    qtbot.waitUntil(lambda: width() == 900 and abs(docks["build"].width() - 0.4 * 900) <= 2)
    qtbot.wait(50)  # Qt lays the docks out several times
    assert abs(docks["build"].width() - 0.4 * 900) <= 2
    window.resize(1440, 900)
    qtbot.waitUntil(lambda: abs(docks["build"].width() - before) <= 2)
    qtbot.wait(50)
    assert abs(docks["build"].width() - before) <= 2


def drag_separator(qtbot, window, by):
    """Drag the separator between the forms and the plots to the right."""
    area, build = window.dock_area, window.dock_area.docks["build"].geometry()
    start = QPoint(build.right() + 3, build.center().y())
    end = start + QPoint(by, 0)
    button, left = Qt.MouseButton.NoButton, Qt.MouseButton.LeftButton
    qtbot.mousePress(area, left, pos=start)
    keys = Qt.KeyboardModifier.NoModifier
    at = QPointF(end), QPointF(area.mapToGlobal(end))
    QApplication.sendEvent(area, QMouseEvent(QEvent.Type.MouseMove, *at, button, left, keys))
    qtbot.waitUntil(lambda: abs(area.docks["build"].width() - build.width() - by) <= 2)
    qtbot.mouseRelease(area, left, pos=end)


def test_the_next_window_gives_the_forms_the_sizes_that_the_user_gave_them(qapp, qtbot, window):
    window.resize(1280, 800)
    window.reset_layout()
    build = window.dock_area.docks["build"]
    qtbot.waitUntil(lambda: 400 < build.width() < 480)
    drag_separator(qtbot, window, -60)
    chosen = build.width()
    for width in (700, 1280):
        window.resize(width, 800)
        qtbot.waitUntil(lambda width=width: window.dock_area.width() == width)
        qtbot.wait(50)
    assert abs(build.width() - chosen) <= 2
    workspace, settings = window.workspace, window.settings
    window.close()
    again = MainWindow(workspace, settings, Appearance(qapp, workspace.theme, settings))
    again.resize(1280, 800)
    again.show()
    qtbot.waitUntil(lambda: abs(again.dock_area.docks["build"].width() - chosen) <= 2)
    qtbot.wait(50)
    assert abs(again.dock_area.docks["build"].width() - chosen) <= 2
    again.close()
    again.deleteLater()


def test_the_form_keeps_its_height_in_a_lower_window_and_the_toggles_scroll(qtbot, window):
    window.resize(1440, 900)
    window.reset_layout()
    area, build = window.dock_area, window.dock_area.docks["build"]
    qtbot.waitUntil(lambda: abs(build.height() - BUILD_HEIGHT) < 30)
    before = build.height()
    for height in (860, 780, 700, 900):
        window.resize(1440, height)
        qtbot.waitUntil(lambda height=height: height - 200 < area.height() < height)
        qtbot.waitUntil(lambda: abs(build.height() - before) <= 2)


def test_lines_below_the_form_do_not_cover_its_last_control(qtbot, ready):
    ready.resize(1280, 800)
    ready.reset_layout()
    form, configuration = panel(ready, "build"), ready.workspace.configuration
    ready.workspace.runs.start()
    qtbot.waitUntil(lambda: ready.workspace.run.state == "running")
    edited = config_edit.with_workload(configuration.catalogue, configuration.edited, "forward")
    configuration.edit(edited)
    configuration.set_toggle("adamw", "fused")
    (line,) = form.findChildren(QLabel, "left")
    last = form.findChild(QToolButton)
    qtbot.waitUntil(lambda: line.height() > 1.5 * line.fontMetrics().height())
    qtbot.waitUntil(lambda: not line.visibleRegion().isEmpty())
    qtbot.wait(50)
    assert last.text() == "Data, seed, fields"
    assert last.visibleRegion().boundingRect() == last.rect()


def test_a_dock_that_is_docked_again_has_the_keyboard(qtbot, ready):
    ready.activateWindow()
    qtbot.waitUntil(ready.isActiveWindow)
    area, dock = ready.dock_area, ready.dock_area.docks["toggles"]
    area.enter("toggles")
    dock.setFloating(True)
    qtbot.wait(50)
    if focus := QApplication.focusWidget():
        focus.clearFocus()
    dock.setFloating(False)
    ready.activateWindow()
    qtbot.waitUntil(lambda: area.current() == "toggles")


def test_a_double_click_on_a_separator_restores_its_default_position(qtbot, window):
    window.resize(1280, 800)
    window.reset_layout()
    area, build = window.dock_area, window.dock_area.docks["build"]
    segments = area.docks["segments"]
    qtbot.waitUntil(lambda: 400 < build.width() < 480 and abs(segments.height() - 208) < 30)
    width, height, lower = build.width(), build.height(), segments.height()
    docks = [area.docks["live"], segments]
    area.resizeDocks(docks, [300, 400], Qt.Orientation.Vertical)
    area.resizeDocks([build, area.docks["toggles"]], [330, 300], Qt.Orientation.Vertical)
    qtbot.waitUntil(lambda: segments.height() > lower + 50 and build.height() > height + 50)
    drag_separator(qtbot, window, -60)

    def double_click(x, y):
        qtbot.mouseDClick(area, Qt.MouseButton.LeftButton, pos=QPoint(x, y))

    double_click(build.geometry().right() + 3, build.geometry().center().y())
    qtbot.waitUntil(lambda: abs(build.width() - width) <= 2)
    assert segments.height() > lower + 50 and build.height() > height + 50
    double_click(build.geometry().center().x(), build.geometry().bottom() + 3)
    qtbot.waitUntil(lambda: abs(build.height() - height) <= 2)
    assert segments.height() > lower + 50
    bar = next(b for b in area._tab_bars() if b.tabText(0) == segments.windowTitle())
    double_click(bar.geometry().center().x(), bar.geometry().top() - 3)
    qtbot.waitUntil(lambda: abs(segments.height() - lower) <= 2)


def test_a_click_on_a_tab_gives_its_panel_the_keyboard_and_a_double_click_floats_it(qtbot, window):
    window.activateWindow()
    area = window.dock_area
    area.enter("toggles")
    qtbot.waitUntil(lambda: area.current() == "toggles")
    bar = next(b for b in area._tab_bars() if b.tabText(0) == area.docks["live"].windowTitle())
    index = next(i for i in range(bar.count()) if bar.tabText(i) == "Sweep")
    at = bar.tabRect(index).center()
    qtbot.mouseClick(bar, Qt.MouseButton.LeftButton, pos=at)
    qtbot.waitUntil(lambda: area.current() == "sweep")
    qtbot.mouseDClick(bar, Qt.MouseButton.LeftButton, pos=at)
    qtbot.waitUntil(area.docks["sweep"].isFloating)
    assert not any(d.isFloating() for n, d in area.docks.items() if n != "sweep")


def test_a_floating_dock_has_an_edge(qtbot, window):
    dock = window.dock_area.docks["build"]
    dock.setFloating(True)
    qtbot.waitUntil(dock.isVisible)
    image = dock.grab().toImage()
    inside = image.pixelColor(5, 5)
    edge = {image.pixelColor(x, y).name() for x in (0, image.width() - 1) for y in (20, 100)}
    assert len(edge) == 1 and inside.name() not in edge


def test_a_window_closed_with_banners_gives_the_lower_panel_the_same_height_again(
    qapp, qtbot, window
):
    window.resize(1280, 800)
    window.reset_layout()
    segments = window.dock_area.docks["segments"]
    qtbot.waitUntil(lambda: abs(segments.height() - 208) < 30)
    before = window.dock_area.height()
    for text in ("first", "second"):
        window.failures.show_banner("warning", text, "")
    qtbot.waitUntil(lambda: window.dock_area.height() < before - 40)
    qtbot.wait(20)
    lower = segments.height()
    workspace, settings = window.workspace, window.settings
    window.close()
    again = MainWindow(workspace, settings, Appearance(qapp, workspace.theme, settings))
    again.resize(1280, 800)
    again.show()
    segments = again.dock_area.docks["segments"]
    qtbot.wait(50)
    assert abs(segments.height() - lower) <= 2
    again.close()
    again.deleteLater()
