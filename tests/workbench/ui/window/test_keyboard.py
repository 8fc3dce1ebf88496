"""The whole window without a mouse: every control is reached, is seen to be, and can be used."""

from __future__ import annotations

import pytest
from fake_session import compared
from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QApplication,
    QComboBox,
    QFileDialog,
    QPlainTextEdit,
    QPushButton,
    QScrollArea,
    QTabBar,
    QTextEdit,
    QWidget,
)
from shown_window import opened
from test_bar import Shown
from test_panels import panel, show
from test_tab_order import pressed

from workbench.ui.controllers import verdict_prompt
from workbench.ui.menus import tab_order
from workbench.ui.panels._chart import Chart
from workbench.ui.panels.lazy_panel import LazyPanel
from workbench.ui.state import session_files

Key = Qt.Key
CTRL, SHIFT = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.ShiftModifier
TAB = Qt.FocusPolicy.TabFocus
CONTROLS = (QAbstractButton, QAbstractItemView, QComboBox, QTabBar, QTextEdit)


@pytest.fixture
def window(request, qapp, qtbot, workspace, settings, monkeypatch):
    """A window that has the keyboard; with its plots, which load slowly, where it is ``full``."""
    if "full" not in request.fixturenames:
        for name in ("live", "compare"):
            monkeypatch.setattr(f"workbench.ui.panel_list.{name}", lambda workspace: QWidget())
    with opened(qapp, workspace, settings) as window:
        window.activateWindow()
        qtbot.waitUntil(window.isActiveWindow)
        yield window


def key(qtbot, which, modifiers=Qt.KeyboardModifier.NoModifier) -> None:
    """Press a key where a person's press would go."""
    at = QApplication.activePopupWidget() or QApplication.focusWidget()
    qtbot.keyClick(at or QApplication.activeWindow(), which, modifiers)


def tab_to(qtbot, wanted) -> None:
    """Press Tab until this has the focus."""
    for _ in range(200):
        if QApplication.focusWidget() is wanted:
            return
        key(qtbot, Key.Key_Tab)
    raise AssertionError(f"Tab never comes to {wanted}")


def in_dialog() -> bool:
    """Return True if keys go to a dialog."""
    dialog = QApplication.activeModalWidget()
    return dialog is not None and dialog.isAncestorOf(QApplication.focusWidget() or dialog)


def seen(widget) -> bool:
    return widget.isVisible() and widget.isEnabled() and not widget.visibleRegion().isEmpty()


@pytest.fixture
def full(qtbot, complete_window, ready):
    """The window with a session and two beside it, and what each panel shows of them."""
    first, *rest = compared()
    show(ready, first)
    for session in rest:
        ready.workspace.compared.add(session)
    ready.dock_area.bring("compare")
    qtbot.waitUntil(lambda: ready.compare.charts["box"].isVisible())
    live = ready.dock_area.docks["live"].widget().panel()
    qtbot.waitUntil(lambda: live.is_drawn)
    return ready


def test_tab_reaches_all_that_can_be_seen_and_used(qtbot, full):
    drawn = 0
    for name in ("live", "compare", "sweep"):
        dock = full.dock_area.docks[name]
        full.dock_area.enter(name)
        qtbot.waitUntil(dock.widget().isVisible)
        stops = pressed(qtbot, full)
        excluded = {
            button for dock in full.dock_area.docks.values() for button in _title_buttons(dock)
        }
        excluded |= {
            widget for widget in full.findChildren(QWidget) if not widget.focusPolicy() & TAB
        }
        inside = [widget for widget in full.findChildren(QWidget) if isinstance(widget, CONTROLS)]
        assert not [
            control for control in inside if seen(control) and control not in (*stops, *excluded)
        ], name
        charts = [
            chart for chart in dock.findChildren(Chart) if chart.isVisible() and not chart.reason
        ]
        assert all(chart.more in stops for chart in charts)
        drawn += len(charts)
    assert drawn > 4


def test_return_presses_every_button(full):
    buttons = full.findChildren(QPushButton)
    assert len(buttons) > 20 and all(button.autoDefault() for button in buttons)


def _title_buttons(dock):
    return dock.titleBarWidget().findChildren(QAbstractButton)


def test_one_sees_what_has_the_focus_in_dark_and_in_light(qtbot, full):
    full.dock_area.enter("compare")
    for theme in ("dark", "light"):
        full.set_theme(theme)
        for stop in pressed(qtbot, full):
            full.dock_area.setFocus()
            before = stop.grab().toImage()
            tab_order.give(stop, Qt.FocusReason.TabFocusReason)
            assert stop.hasFocus() and not stop.visibleRegion().isEmpty()
            assert stop.grab().toImage() != before, (theme, stop, stop.toolTip())


def test_a_control_that_has_the_focus_is_scrolled_to(qtbot, ready):
    ready.resize(1024, 600)
    areas = ready.toggles.findChildren(QScrollArea)
    (area,) = (area for area in areas if area.isAncestorOf(next(iter(ready.toggles.rows.values()))))
    qtbot.waitUntil(lambda: area.verticalScrollBar().maximum() > 0)
    places = set()
    for row in ready.toggles.rows.values():
        target = row.picker.focus_target()
        if target.isEnabled() and row.isVisible():
            tab_to(qtbot, target)
            assert target.visibleRegion().boundingRect() == target.rect()
            places.add(area.verticalScrollBar().value())
    assert len(places) > 1


@pytest.mark.slow
def test_a_table_scrolls_to_what_has_the_focus_in_its_cells(qtbot, full):
    full.resize(1024, 600)
    full.dock_area.enter("compare")
    table = full.compare.sessions
    qtbot.waitUntil(lambda: table.verticalScrollBar().maximum() > 0)
    boxes = [table.cellWidget(row, 1) for row in range(table.rowCount())]
    for box in boxes:
        tab_to(qtbot, box)
        assert box.visibleRegion().boundingRect() == box.rect()


@pytest.mark.slow
def test_a_comparison_that_is_worked_out_anew_leaves_the_keyboard_where_it_is(qtbot, full):
    panel, box = full.compare, full.compare.sessions.cellWidget(1, 1)
    tab_to(qtbot, box)
    result = panel.result
    full.workspace.compared.changed.emit()
    qtbot.waitUntil(lambda: panel.result is not result)
    assert box.hasFocus() and panel.sessions.cellWidget(1, 1) is box
    key(qtbot, Key.Key_Down)
    qtbot.waitUntil(lambda: panel.result.runs[1].segments == (box.currentIndex(),))
    assert box.hasFocus()


def test_configuration_run_toggle_and_verdict_need_no_mouse(qtbot, ready, hold, monkeypatch):
    monkeypatch.setattr(verdict_prompt, "SETTLE_MS", 300)
    workspace, build = ready.workspace, panel(ready, "build")
    ready.dock_area.enter("text")
    key(qtbot, Key.Key_Tab, CTRL)
    assert ready.dock_area.current() == "build"
    for name in ("preset", "workload"):
        before = getattr(workspace.configuration.edited, name)
        tab_to(qtbot, build.findChild(QComboBox, name))
        key(qtbot, Key.Key_Down)
        assert getattr(workspace.configuration.edited, name) != before
        key(qtbot, Key.Key_Up)
    key(qtbot, Key.Key_F5)
    qtbot.waitUntil(
        lambda: workspace.run.state == "running" and not workspace.configuration.pending
    )
    hold.touch()
    picker = ready.toggles.rows["triton"].picker
    tab_to(qtbot, picker.focus_target())
    key(qtbot, Key.Key_Right)
    key(qtbot, Key.Key_Space)
    assert workspace.configuration.edited.toggles["triton"] == picker.value == "on"
    assert picker.focus_target().hasFocus()
    bar = ready.toggles.verdict.bar
    qtbot.waitUntil(bar.isVisible)
    qtbot.waitUntil(lambda: bar.findChild(QPushButton) is not None)  # not while it builds
    tab_to(qtbot, bar.findChild(QPushButton))
    key(qtbot, Key.Key_Space)
    qtbot.waitUntil(lambda: workspace.verdicts.measuring)
    assert bar.findChild(QPushButton).text() == "Enough" and bar.findChild(QPushButton).hasFocus()
    key(qtbot, Key.Key_Space)
    hold.unlink()
    qtbot.waitUntil(lambda: workspace.run.state == "running" and not workspace.verdicts.busy)
    key(qtbot, Key.Key_F5, SHIFT)
    qtbot.waitUntil(lambda: workspace.run.state == "idle")


def test_a_blocked_option_is_unblocked_and_its_row_keeps_the_keyboard(qtbot, ready):
    row = ready.toggles.rows["attention"]
    tab_to(qtbot, row.lock)
    key(qtbot, Key.Key_Space)
    tab_to(qtbot, row.findChild(QPushButton, "fix"))
    key(qtbot, Key.Key_Space)
    qtbot.waitUntil(lambda: not row.findChildren(QPushButton, "fix"))
    assert row.picker.focus_target().hasFocus()


@pytest.mark.slow
def test_saving_opening_comparing_and_exporting_need_no_mouse(qtbot, full, tmp_path, monkeypatch):
    saved, other, drawn = (tmp_path / name for name in ("saved.h5", "other.h5", "drawn.svg"))
    session_files.write(full.workspace.compared.sessions[0], other)
    for ask, answer in (
        ("getSaveFileName", lambda _, title, *__: (str(drawn if "Export" in title else saved), "")),
        ("getOpenFileName", lambda *_: (str(saved), "")),
        ("getOpenFileNames", lambda *_: ([str(other)], "")),
    ):
        monkeypatch.setattr(QFileDialog, ask, answer)
    key(qtbot, Key.Key_S, CTRL)
    qtbot.waitUntil(saved.exists)
    full.workspace.compared.clear()
    key(qtbot, Key.Key_O, CTRL)
    qtbot.waitUntil(lambda: full.workspace.session.path == saved)
    key(qtbot, Key.Key_O, CTRL | SHIFT)
    qtbot.waitUntil(lambda: len(full.workspace.compared.sessions) == 1)
    full.dock_area.enter("live")
    chart = next(chart for chart in full.live.shown if chart.reason is None)
    tab_to(qtbot, chart.more)
    key(qtbot, Key.Key_Space)
    qtbot.waitUntil(lambda: QApplication.activePopupWidget() is not None)
    menu = QApplication.activePopupWidget()
    for _ in menu.actions():
        if menu.activeAction() is not None and "SVG" in menu.activeAction().text():
            break
        key(qtbot, Key.Key_Down)
    key(qtbot, Key.Key_Return)
    qtbot.waitUntil(drawn.exists)
    assert chart.more.hasFocus()


def test_keys_go_from_panel_to_panel_and_come_round_and_arrows_through_tabs(qtbot, ready):
    names = list(ready.dock_area.docks)
    ready.dock_area.enter(names[-1])
    seen_names = []
    for _ in names:
        key(qtbot, Key.Key_Tab, CTRL)
        seen_names.append(ready.dock_area.current())
        assert seen(QApplication.focusWidget())
    assert seen_names == names
    key(qtbot, Key.Key_Tab, CTRL | SHIFT)
    assert ready.dock_area.current() == names[-2]
    ready.dock_area.bring("live")
    bar = next(stop for stop in ready.dock_area.in_reading_order() if isinstance(stop, QTabBar))
    tab_to(qtbot, bar)
    assert ready.dock_area.current() == "live"
    key(qtbot, Key.Key_Right)
    qtbot.waitUntil(lambda: seen(ready.verdict))
    assert ready.dock_area.current() == "verdict" and bar.hasFocus()


@pytest.mark.slow
def test_a_panel_is_floated_docked_and_closed_from_the_keyboard(qtbot, ready):
    ready.dock_area.enter("build")
    dock = ready.dock_area.docks["build"]
    key(qtbot, Key.Key_F, CTRL | SHIFT)
    qtbot.waitUntil(lambda: dock.isFloating() and ready.dock_area.current() == "build")
    key(qtbot, Key.Key_F, CTRL | SHIFT)
    qtbot.waitUntil(lambda: not dock.isFloating() and ready.dock_area.current() == "build")
    key(qtbot, Key.Key_W, CTRL)
    assert dock.isHidden() and ready.dock_area.current() == "toggles"


def test_what_had_the_keyboard_has_it_again_after_the_palette_and_dialogs(qtbot, ready):
    control = panel(ready, "build").findChild(QComboBox, "workload")
    tab_to(qtbot, control)
    key(qtbot, Key.Key_P, CTRL | SHIFT)
    assert ready.palette_.line.hasFocus()
    key(qtbot, Key.Key_Escape)
    assert control.hasFocus() and not ready.palette_.isVisible()
    for shortcut, modifiers in ((Key.Key_F2, 0), (Key.Key_Slash, CTRL)):
        key(qtbot, shortcut, Qt.KeyboardModifier(modifiers))
        qtbot.waitUntil(in_dialog)
        key(qtbot, Key.Key_Escape)
        qtbot.waitUntil(lambda: QApplication.activeModalWidget() is None)
        ready.activateWindow()  # as the desktop's window manager does
        qtbot.waitUntil(control.hasFocus)
    key(qtbot, Key.Key_P, CTRL | SHIFT)
    qtbot.keyClicks(ready.palette_.line, "panel: sweep")
    key(qtbot, Key.Key_Return)
    assert ready.dock_area.current() == "sweep"


def test_a_key_that_shows_a_panel_moves_the_keyboard_into_it(qtbot, ready, hold):
    hold.touch()
    for name, which, modifiers in (
        ("attribution", Key.Key_F9, 0),
        ("optimize", Key.Key_F9, CTRL),
        ("sweep", Key.Key_F7, SHIFT),
        ("claims", Key.Key_F10, 0),
        ("breakdown", Key.Key_F9, SHIFT),
        ("checklist", Key.Key_F7, 0),
    ):
        ready.dock_area.enter("build")
        key(qtbot, which, Qt.KeyboardModifier(modifiers))
        focused = QApplication.focusWidget()
        assert seen(focused) and ready.dock_area.docks[name].isAncestorOf(focused)
    qtbot.waitUntil(lambda: ready.workspace.checklists.checking)
    qtbot.waitUntil(lambda: not ready.checklist.button.isEnabled())  # it had the keyboard
    assert ready.dock_area.current() == "checklist"
    key(qtbot, Key.Key_Tab, CTRL)
    assert ready.dock_area.current() == "sweep"


def test_every_action_of_the_tool_bar_has_a_key_or_a_menu_that_has_one(ready):
    bar = {
        action for action in ready.toolbar.actions() if action.text() and not action.isSeparator()
    }
    menus = ready.menuBar().actions()
    assert bar <= {action for menu in menus for action in menu.menu().actions()}
    keys = [menu.text().partition("&")[2][:1] for menu in menus]
    assert all(keys) and len(set(keys)) == len(keys)


def test_text_that_is_written_into_is_left_with_tab(qtbot, ready):
    ready.actions_["notes"].trigger()
    qtbot.waitUntil(in_dialog)
    box = QApplication.activeModalWidget()
    edit = box.findChild(QPlainTextEdit)
    qtbot.waitUntil(edit.hasFocus)
    key(qtbot, Key.Key_Tab)
    assert not edit.hasFocus() and not edit.toPlainText()
    key(qtbot, Key.Key_Escape)


def test_no_panel_is_a_window_of_its_own_while_it_is_made(qapp, qtbot, workspace, settings):
    """It would flash, and take the keyboard away from who has just begun to type."""
    shown = []
    with opened(qapp, workspace, settings) as window:
        window.activateWindow()
        qtbot.waitUntil(window.isActiveWindow)
        watch = Shown(shown)
        qapp.installEventFilter(watch)
        for name, dock in window.dock_area.docks.items():
            window.dock_area.enter(name)
            if isinstance(dock.widget(), LazyPanel):
                dock.widget().panel()
        qapp.removeEventFilter(watch)
        assert not shown and window.isActiveWindow()
