"""The Tab key: every control in the order in which one reads, and never caught in a table."""

from __future__ import annotations

from fake_session import session
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QCheckBox, QTableView, QToolBar, QToolButton
from test_panels import panel, show

from workbench.ui.menus import tab_order


def pressed(qtbot, window, forward=True) -> list:
    """Return what has the focus after each press of Tab, until the first comes again."""
    stops = []
    key = Qt.Key.Key_Tab if forward else Qt.Key.Key_Backtab
    while len(stops) < 200:
        qtbot.keyClick(QApplication.focusWidget() or window, key)
        now = QApplication.focusWidget()
        assert not now.visibleRegion().isEmpty(), "one sees where one is"
        if stops and now is stops[0]:
            return stops
        stops.append(now)
    raise AssertionError("Tab does not come round")


def test_tab_goes_through_forms_toggles_and_tables_as_they_lie_and_comes_round(qtbot, ready):
    show(ready, session())
    qtbot.waitUntil(lambda: panel(ready, "segments").model.rowCount() == 6)
    ready.activateWindow()
    qtbot.waitUntil(ready.isActiveWindow)
    tabbed = pressed(qtbot, ready)
    names = [widget.objectName() for widget in tabbed if widget.objectName()]
    form = ["family", "preset", "workload", "field-batch", "field-sequence"]
    assert [name for name in names if name in form] == form
    rows = [row for row in ready.toggles.rows.values() if row.picker.isVisible()]
    indices = [next((index for index, widget in enumerate(tabbed) if row.isAncestorOf(widget)), -1)
             for row in rows]  # fmt: skip
    enabled = [index for row, index in zip(rows, indices, strict=True) if row.picker.isEnabled()]
    assert -1 not in enabled and enabled == sorted(enabled)
    table = panel(ready, "segments").table
    assert isinstance(table, QTableView) and tabbed.index(table) > max(enabled)
    back = pressed(qtbot, ready, forward=False)
    assert sorted(map(id, back)) == sorted(map(id, tabbed))
    start = back.index(tabbed[-1])
    assert [*back[start:], *back[:start]] == tabbed[::-1]


def test_panels_behind_another_tab_have_no_stops(qtbot, complete_window, ready):
    ready.dock_area.bring("checklist")
    qtbot.waitUntil(lambda: ready.checklist.isVisible())
    behind = [ready.dock_area.docks[name].widget() for name in ("attribution", "sweep")]
    ready.dock_area.bring("attribution")
    qtbot.waitUntil(lambda: bool(tab_order.chain([behind[0]])))
    assert not tab_order.chain([behind[1], ready.dock_area.docks["checklist"].widget()])


def test_one_sees_what_has_the_focus_on_controls_that_stand_out_already(qtbot, ready):
    rows, boxes = ready.toggles.rows, ready.toggles.findChildren(QCheckBox)
    box = next(box for box in boxes if box.text() == "Auto-verdict")
    box.setChecked(True)
    ready.workspace.configuration.set_toggle("precision", "amp_bf16")
    ready.workspace.configuration.set_toggle("triton", "on")
    primary = ready.findChildren(QToolBar)[0].widgetForAction(ready.actions_["run"])
    primary.setFocusPolicy(Qt.FocusPolicy.StrongFocus)  # else a tool bar's button has none
    picker = rows["triton"].picker
    segment = next(button for button in picker.findChildren(QToolButton) if button.isChecked())
    ready.activateWindow()
    qtbot.waitUntil(ready.isActiveWindow)
    for control in (rows["precision"].picker.focus_target(), segment, box, primary):
        ready.dock_area.setFocus()
        before = control.grab().toImage()
        control.setFocus()
        assert control.hasFocus()
        assert control.grab().toImage() != before, control
