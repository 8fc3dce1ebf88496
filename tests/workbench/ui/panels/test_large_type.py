"""Another font size, chosen while the window is open, reaches rows, columns and docks."""

from __future__ import annotations

import fake_session
import pytest
from PySide6.QtCore import QLocale, Qt
from PySide6.QtGui import QFontMetrics
from PySide6.QtWidgets import QApplication, QLineEdit, QScrollArea, QTableView, QToolButton

from sessions import numerics
from sessions.model import Numerics, Session
from sessions.plain_text import wrapped
from workbench.client.recorder import Recorder
from workbench.theming import fonts, stylesheet
from workbench.ui.panels._table import PlainTable
from workbench.ui.panels._verdicts_table import VerdictsTable
from workbench.ui.panels._widgets import FormColumn, Mark, note
from workbench.ui.panels.empty import Empty


@pytest.fixture
def choose_points(ready):
    """Return a function that chooses a font size, for every panel; the size before is restored."""

    def choose(points):
        ready.appearance.choose_font(points)
        for dock in ready.dock_area.docks.values():  # also those behind others, as if brought up
            dock.setStyleSheet(stylesheet.sheet(ready.workspace.theme.current))

    before = ready.appearance.font_points
    yield choose
    ready.appearance.choose_font(before)


def test_rows_of_every_table_are_higher_than_their_text(complete_window, choose_points):
    tables = complete_window.findChildren(QTableView)
    assert len(tables) > 8
    before = [table.verticalHeader().defaultSectionSize() for table in tables]
    choose_points(20)
    text_px = QFontMetrics(fonts.numbers()).height()
    low = [t for t in tables if t.verticalHeader().defaultSectionSize() < text_px + 6]
    assert not low
    choose_points(9)
    assert [table.verticalHeader().defaultSectionSize() for table in tables] == before


def test_the_forms_are_wider_in_larger_type_and_as_before_in_the_first(qtbot, ready, choose_points):
    build = ready.dock_area.docks["build"]
    qtbot.waitUntil(lambda: build.width() > 340)
    before = build.width()
    choose_points(14)
    qtbot.waitUntil(lambda: build.width() > 1.15 * before)
    assert build.width() < 1.5 * before, "the plots need room too"
    choose_points(9)
    qtbot.waitUntil(lambda: abs(build.width() - before) < 5)


def test_times_and_kinds_of_events_are_complete_in_larger_type(complete_window, choose_points):
    table = complete_window.dock_area.docks["events"].findChild(QTableView)
    choose_points(18)
    metrics, padding = table.fontMetrics(), 16
    assert table.columnWidth(0) >= metrics.horizontalAdvance("0:00:00.0") + padding
    assert table.columnWidth(1) >= metrics.horizontalAdvance("warning") + padding


def test_type_of_fixed_width_is_as_large_as_the_other(choose_points):
    choose_points(16)
    assert fonts.fixed().pointSizeF() == QApplication.font().pointSizeF() == 16


def test_icons_are_as_high_as_the_text_and_do_not_touch_it(complete_window, choose_points):
    buttons = [
        button
        for button in complete_window.findChildren(QToolButton)
        if not button.icon().isNull() and not isinstance(button.parent(), QLineEdit)
    ]
    beside = Qt.ToolButtonStyle.ToolButtonTextBesideIcon
    for points in (18, 9):
        choose_points(points)
        marks = complete_window.findChildren(Mark)
        least_px = QFontMetrics(QApplication.font()).height()
        low = [button for button in buttons if button.iconSize().height() < least_px]
        assert not [button.accessibleName() or button.text() for button in low]
        assert all(mark.pixmap().deviceIndependentSize().height() >= least_px for mark in marks)
        for button in buttons:
            if button.toolButtonStyle() == beside and not button.property("bare"):
                assert button.iconSize().width() >= button.iconSize().height() + 4, button.text()


def test_segments_fit_and_what_has_no_room_is_in_the_tool_tip(qtbot, ready):
    session = fake_session.session()
    for segment in session.segments:
        segment.ledger |= numerics.facts(Numerics(reference="float64", ok=True, text="as expected"))
    ready.resize(1120, 800)
    ready.workspace.session.shown = session
    ready.workspace.session.sessionChanged.emit()
    view = ready.dock_area.docks["segments"].findChild(QTableView)
    model = view.model()
    qtbot.waitUntil(lambda: model.rowCount() == 6)

    def shown():
        columns = range(model.columnCount())
        heads = (model.headerData(at, Qt.Orientation.Horizontal) for at in columns)
        return [head for at, head in enumerate(heads) if not view.isColumnHidden(at)]

    qtbot.waitUntil(lambda: view.horizontalScrollBar().maximum() == 0)
    assert {"Median ms", "x step time", "95 % interval", "Numbers"} <= {*shown()}
    assert "p95 ms" not in shown()
    assert "p95 ms: " in model.index(1, 1).data(Qt.ItemDataRole.ToolTipRole)
    ready.resize(1900, 900)
    qtbot.waitUntil(lambda: "p95 ms" in shown() and "Steps" in shown())


def test_uncorrected_verdicts_are_hidden_where_the_table_would_scroll(qtbot, workspace, judged):
    table = VerdictsTable(workspace.theme)
    qtbot.addWidget(table)
    table.resize(1400, 120)
    table.show()
    table.show_comparisons(judged.comparisons, 0)
    column = table.table.column("uncorrected")
    qtbot.waitUntil(lambda: not table.isColumnHidden(column))
    table.resize(700, 120)
    qtbot.waitUntil(lambda: table.isColumnHidden(column))
    assert not table.isColumnHidden(table.table.column("verdict"))


def test_in_large_type_no_line_of_a_sweep_covers_another(qtbot, complete_window, choose_points):
    recorder = Recorder(Session(title="sweep"))
    for message in fake_session.messages("sweep"):
        recorder.record(message)
    complete_window.workspace.session.show(recorder.session)
    complete_window.dock_area.bring("sweep")
    choose_points(18)
    panel = complete_window.sweep
    boxes = list(panel.arms.values())
    qtbot.waitUntil(lambda: len({box.y() for box in boxes}) > 1, timeout=5000)

    def is_apart():
        bottom = max(box.geometry().bottom() for box in boxes)
        return bottom <= panel.status.geometry().top()

    qtbot.waitUntil(is_apart)


def test_segments_do_not_scroll_sideways_in_large_type(qtbot, ready, choose_points):
    ready.workspace.session.show(fake_session.session())
    ready.resize(1280, 800)
    choose_points(18)
    panel = ready.dock_area.docks["segments"].widget()
    view = panel.table
    qtbot.waitUntil(lambda: panel.model.rowCount() == 6)
    qtbot.waitUntil(lambda: view.horizontalScrollBar().maximum() == 0)
    heads = [panel.model.headerData(at, Qt.Orientation.Horizontal) for at in range(8)]
    shown = [head for at, head in enumerate(heads) if not view.isColumnHidden(at)]
    assert shown[-2:] == ["x step time", "95 % interval"]
    assert "Median ms: " in panel.model.index(1, 1).data(Qt.ItemDataRole.ToolTipRole)
    choose_points(9)
    qtbot.waitUntil(lambda: not view.isColumnHidden(heads.index("Median ms")))


@pytest.mark.parametrize("name", ["optimize", "attribution"])
def test_the_controls_of_a_form_are_complete_in_large_type(
    qtbot, complete_window, choose_points, name
):
    complete_window.resize(1280, 800)
    complete_window.dock_area.bring(name)
    choose_points(18)
    form = complete_window.dock_area.docks[name].findChild(FormColumn)
    (area,) = form.findChildren(QScrollArea)
    qtbot.waitUntil(lambda: area.widget().width() <= area.viewport().width())


def test_claims_do_not_scroll_sideways_in_large_type(qtbot, complete_window, choose_points):
    complete_window.resize(1280, 800)
    complete_window.dock_area.bring("claims")
    panel = complete_window.claims
    bar, row = panel._area.horizontalScrollBar(), next(iter(panel.rows.values()))
    qtbot.waitUntil(lambda: row.word.y() == row.claim.y())
    choose_points(18)
    qtbot.waitUntil(lambda: bar.maximum() == 0 and row.claim.y() > row.word.y())
    choose_points(9)
    qtbot.waitUntil(lambda: row.word.y() == row.claim.y())


def test_the_sentence_of_an_empty_panel_is_complete_when_its_type_grows(qtbot, workspace):
    page = Empty(workspace.theme, "verdict", "No verdict yet", "Run a configuration. " * 8)
    qtbot.addWidget(page)
    page.resize(600, 400)
    page.show()
    label, font = page._sentence, page.font()
    font.setPointSizeF(18)
    page.setFont(font)
    qtbot.waitUntil(lambda: label.height() >= label.heightForWidth(label.width()))


def test_no_line_ends_between_a_number_and_its_unit(qtbot):
    label, table = note("21 s"), PlainTable()
    qtbot.addWidget(label)
    qtbot.addWidget(table)
    width = label.fontMetrics().horizontalAdvance("21 s")
    assert label.heightForWidth(width // 2) == label.heightForWidth(2 * width)
    assert label.text() == "21 s", "with the space that was typed"
    assert wrapped("It took 21 s", columns=11) == "It took\n21 s"
    table.wrap(100)
    assert table.itemDelegate().displayText("21 s of 30 s", QLocale()) == "21\u00a0s of 30\u00a0s"
