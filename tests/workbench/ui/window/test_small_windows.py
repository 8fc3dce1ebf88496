"""In a small window, and in large type, nothing is cut off, squeezed or laid over other things."""

from __future__ import annotations

import threading
from itertools import combinations, pairwise

import attribution_samples
import msgspec
import numpy as np
import optimization_samples
import pytest
from fake_session import compared, session
from hang_limit import HANG_S
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QFontMetrics, QImage
from PySide6.QtWidgets import (
    QApplication,
    QLabel,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QScrollArea,
    QStackedWidget,
    QTableView,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from sessions.model import Session
from sessions.tables import Column, Table
from workbench.theming import stylesheet
from workbench.theming.theme import DARK, LIGHT
from workbench.titles import Titles
from workbench.ui import panel_list
from workbench.ui.panels import _verdicts_table, _widgets
from workbench.ui.panels._bar import Bar
from workbench.ui.panels._names_share import ROOMY
from workbench.ui.panels._segment_model import INTERVAL, condensed
from workbench.ui.panels._verdicts_table import MOST_VERDICTS, SHOWN_HERE, VerdictsTable
from workbench.ui.panels._wrapped_row import WrappedRow
from workbench.ui.panels.compare import NOTHING, ComparePanel, work_out
from workbench.ui.panels.verdict import JUDGE
from workbench.ui.state import config_edit

LONG = "relative error 0.022, at most 0.0021 expected, off by 0.03 over 8 steps; " * 3
BESIDE_PX = 700  # for the panels in a window of 1024 pixels


@pytest.fixture
def verdict_panel(qtbot, workspace, judged):
    """The panel inside a widget: a window of its own would be as large as its layout asks."""
    host = QWidget()
    qtbot.addWidget(host)
    host.resize(BESIDE_PX, 1000)
    panel = panel_list.verdict(workspace)
    panel.setParent(host)
    host.show()
    yield panel


def test_in_large_type_no_panel_needs_more_width_either(qtbot, complete_window, large_type):
    large_type.resize(1024, 700)
    for name in large_type.dock_area.docks.keys() - {"build", "toggles"}:
        large_type.dock_area.bring(name)
        body = large_type.dock_area.docks[name].widget()
        qtbot.waitUntil(lambda body=body: body.isVisible() and body.font().pointSizeF() == 14)
        QApplication.processEvents()
        panels = [body, *body.findChildren(QStackedWidget)]
        assert max(panel.minimumSizeHint().width() for panel in panels) <= BESIDE_PX, name


def test_in_large_type_the_head_of_an_optimization_is_complete_and_scrolls(qtbot, large_type):
    large_type.resize(1024, 700)
    large_type.workspace.session.shown = Session(studies=[optimization_samples.study()])
    large_type.search()
    panel = large_type.optimize
    lines = (panel.headline, panel.best, panel.about, panel.chosen)
    qtbot.waitUntil(lambda: panel.candidates.rowCount() > 1)
    panel.candidates.selectRow(1)  # otherwise the best is chosen, which has a line already
    qtbot.waitUntil(lambda: all(line.text() and line.isVisible() for line in lines))
    qtbot.waitUntil(
        lambda: all(line.height() >= line.heightForWidth(line.width()) for line in lines)
    )
    assert panel.headline.mapTo(panel, panel.headline.rect().topRight()).x() < panel.width()


@pytest.mark.parametrize("width", [1000, 250, 120])
def test_controls_without_room_on_a_line_continue_on_another(qtbot, width):
    host = QWidget()
    qtbot.addWidget(host)
    buttons = [QToolButton(text=text) for text in ("First control", "Second control", "Third")]
    host.setLayout(WrappedRow(*buttons))
    host.resize(width, host.heightForWidth(width))
    host.show()
    areas = [button.geometry() for button in buttons]
    assert all(host.rect().contains(area) for area in areas)
    assert not any(a.intersects(b) for a, b in combinations(areas, 2))
    assert (len({area.y() for area in areas}) == 1) == (width == 1000)


def test_no_panel_needs_more_width_than_a_small_window_has_for_it(qtbot, complete_window, ready):
    ready.resize(1024, 700)
    ready.dock_area.proportion()
    for name, dock in ready.dock_area.docks.items():
        ready.dock_area.bring(name)
        qtbot.waitUntil(dock.widget().isVisible)
        panels = [dock.widget(), *dock.widget().findChildren(QStackedWidget)]
        needed = max(panel.minimumSizeHint().width() for panel in panels)
        assert needed <= dock.widget().width(), name
        assert dock.mapTo(ready, dock.rect().topRight()).x() < ready.width(), name


def test_a_form_whose_fields_were_changed_is_as_wide_as_its_room(qtbot, ready):
    workspace = ready.workspace
    ready.resize(1024, 700)
    for name, value in (("dim", 512), ("n_heads", 8), ("n_layers", 4)):
        workspace.configuration.edit(
            config_edit.with_model(
                workspace.configuration.catalogue, workspace.configuration.edited, name, value
            )
        )
    area = ready.dock_area.docks["build"].findChild(QScrollArea)
    body = area.widget()
    qtbot.waitUntil(lambda: area.viewport().width() < 320)
    assert len(workspace.configuration.edited.model) == 3
    assert body.minimumSizeHint().width() <= area.viewport().width()


@pytest.mark.parametrize("height", [120, 400])
def test_a_bar_of_many_lines_scrolls_where_it_has_no_room_and_squeezes_none(qtbot, height):
    host, bar = QWidget(), Bar(lambda: None)
    qtbot.addWidget(host)
    column = QVBoxLayout(host)
    snug = _widgets.FittedScrollArea(bar)
    column.addWidget(snug)
    column.addStretch(1)
    bar.say("bad", [(LONG, "error", "bad")] * 2, [("More", lambda: None)], DARK)
    host.resize(320, height)
    host.show()

    def is_complete() -> bool:
        labels = [label for label in bar.findChildren(QLabel) if label.text()]
        return len(labels) == 2 and all(
            label.height() >= label.heightForWidth(label.width()) for label in labels
        )

    def scrolls() -> bool:
        return snug.verticalScrollBar().maximum() > 0

    qtbot.waitUntil(lambda: is_complete() and scrolls() == (height == 120))
    assert snug.geometry().bottom() <= host.height()
    qtbot.waitUntil(lambda: bar.height() <= bar.heightForWidth(bar.width()) + 1)  # not spread
    bar.leave()
    qtbot.waitUntil(lambda: snug.height() == 0)


def test_a_verdict_bar_takes_its_room_from_the_toggles_and_leaves_them_some(qtbot, panel):
    panel.resize(320, 260)
    lines = [(2 * LONG, "error", "bad"), ("short", "", "")]
    panel.verdict.bar.say("bad", lines, [("More", lambda: None)], DARK)
    rows = panel._body
    qtbot.waitUntil(lambda: panel.verdict.height() > 60)
    assert panel.verdict.geometry().bottom() < rows.geometry().top()
    assert rows.geometry().bottom() <= panel.height() and rows.height() > 40
    (long,) = (label for label in panel.verdict.findChildren(QLabel) if label.text() == 2 * LONG)
    qtbot.waitUntil(lambda: long.height() >= long.heightForWidth(long.width()))


def test_the_arms_of_verdicts_can_be_told_apart_in_a_narrow_table(qtbot, workspace, judged):
    table = VerdictsTable(workspace.theme)
    qtbot.addWidget(table)
    table.show()
    header = table.horizontalHeader()
    least = 12 * QFontMetrics(table.font()).averageCharWidth()
    table.show_comparisons(judged.comparisons, 0)
    for width in range(1000, BESIDE_PX // 2, -50):
        table.resize(width, 120)
        qtbot.waitUntil(lambda width=width: table.viewport().width() <= width)
        assert all(table.columnWidth(column) >= least for column in (0, 1)), width
    two_rows = header.sizeHint().height() + 2 * table.rowHeight(0)
    assert two_rows <= table.minimumSizeHint().height() < table.sizeHint().height()
    table.resize(2200, 120)
    qtbot.waitUntil(lambda: abs(header.length() - table.viewport().width()) <= 2)


def test_a_verdict_asks_for_no_more_room_than_a_small_window_has(qtbot, verdict_panel):
    panel = verdict_panel
    panel.resize(BESIDE_PX - 30, 300)
    qtbot.waitUntil(panel.table.isVisible)
    hint = panel.minimumSizeHint()
    assert hint.width() <= BESIDE_PX - 30 and hint.height() <= 300
    assert panel.judge.accessibleName() == JUDGE
    panel.resize(hint.width(), 300)
    qtbot.waitUntil(lambda: panel.judge.text() != JUDGE)
    panel.resize(BESIDE_PX - 30, 300)
    qtbot.waitUntil(lambda: panel.table.geometry().bottom() <= panel.height())
    panel.resize(1400, 600)
    qtbot.waitUntil(lambda: panel.judge.text() == JUDGE)


def test_a_table_of_verdicts_announces_its_cells_at_once(workspace, verdict_panel):
    """The header measured its columns after each cell: 300 verdicts took 3.3 s."""
    verdicts, changes = 60 * workspace.session.shown.comparisons, []
    table = verdict_panel.table
    table.show_comparisons(verdicts, 0)
    table.model().dataChanged.connect(lambda *_: changes.append(1))
    table.show_comparisons(verdicts, 1)
    assert table.rowCount() == len(verdicts) and 1 <= len(changes) <= 2


def test_the_newest_verdicts_are_listed_and_each_can_be_shown(workspace, verdict_panel):
    comparisons = workspace.session.shown.comparisons
    comparisons[:] = [
        msgspec.structs.replace(comparisons[0], arms=[f"arm {index}", "other"])
        for index in range(MOST_VERDICTS + 50)
    ]
    verdict_panel.resize(800, 500)
    workspace.session.sessionChanged.emit()
    table = verdict_panel.table
    assert table.rowCount() == MOST_VERDICTS and table.item(0, 0).text() == "arm 50"
    assert not verdict_panel._left_out.isHidden()
    assert "newest 200 of 250" in verdict_panel._left_out.text()
    table.cellActivated.emit(0, 0)
    assert table.item(0, 0).toolTip().endswith(SHOWN_HERE)
    del comparisons[3:]
    workspace.session.sessionChanged.emit()
    assert table.rowCount() == 3 and verdict_panel._left_out.isHidden()


@pytest.mark.parametrize("most", [MOST_VERDICTS, 2])
def test_no_part_of_a_verdict_covers_another_at_any_height(
    qtbot, workspace, verdict_panel, monkeypatch, most
):
    panel = verdict_panel
    monkeypatch.setattr(_verdicts_table, "MOST_VERDICTS", most)  # fewer: a note is below the table
    workspace.session.sessionChanged.emit()

    def fits():
        parts = [panel.headline, panel.ratio, panel.more, panel.budget, panel.chart, panel.table]
        parts.append(panel._left_out)
        shown = [part for part in parts if part.isVisible()]
        spans = [(part.mapTo(panel, QPoint()).y(), part.height()) for part in shown]
        apart = all(top + height <= below for (top, height), (below, _) in pairwise(spans))
        ratio_px = panel.ratio.heightForWidth(panel.ratio.width())
        return apart and sum(spans[-1]) <= panel.height() and panel.ratio.height() >= ratio_px

    for height in [*range(260, 600, 20), *range(600, 260, -20)]:
        panel.resize(BESIDE_PX - 30, height)
        QApplication.processEvents()
        assert fits(), height
    panel.resize(BESIDE_PX - 30, 600)
    assert panel.chart.isVisible() and panel.budget.isVisible()


def test_a_long_reason_without_an_interval_leaves_the_names_their_room(qtbot, workspace):
    why = "no interval because the segment has no steady steps at all and nobody knows any"
    columns = ["segment", "settings.sequence", "steady steps", "median", "p95", "ratio",
               "ratio from", "ratio to", "verdict", "peak memory", "note"]  # fmt: skip
    rows = [
        ["a", 1, 9, 1.0, 2.0, 1.0, "–", "–", "", 3, "baseline"],
        ["b", 2, 9, 1.0, 2.0, 1.0, "–", "–", "", 3, why],
    ]
    table = Table("t", [Column(name) for name in columns], rows)
    panel = panel_list.segments(workspace)
    qtbot.addWidget(panel)
    panel._pages.setCurrentIndex(1)
    panel.resize(BESIDE_PX, 200)
    panel.show()
    panel.model.show_table(table)
    panel._names.set_columns([1])
    column = panel.model._shown.headings.index(INTERVAL)
    assert condensed(table, 0, Titles()).cells[1][column] == why
    qtbot.waitUntil(lambda: 0 < panel.table.columnWidth(column) < 0.3 * BESIDE_PX)
    tip = panel.model.index(1, column).data(Qt.ItemDataRole.ToolTipRole)
    assert tip == why
    header = panel.table.horizontalHeader()
    qtbot.waitUntil(lambda: abs(header.length() - panel.table.viewport().width()) <= 2)
    panel.resize(360, 200)
    least = 12 * QFontMetrics(panel.table.font()).averageCharWidth()
    qtbot.waitUntil(lambda: panel.table.viewport().width() <= 420)
    assert panel.table.columnWidth(1) >= least


def comparing(qtbot, workspace, height: int) -> ComparePanel:
    """The panel with a session and two beside it, as wide as a small window lets it be."""
    first, *rest = compared()
    workspace.session.shown = first
    panel = panel_list.compare(workspace)
    qtbot.addWidget(panel)
    for other in rest:
        workspace.compared.add(other)
    panel.resize(BESIDE_PX, height)
    panel.show()
    qtbot.waitUntil(lambda: panel.result is not None)
    return panel


def test_sessions_that_are_compared_can_be_told_apart_by_the_ends_of_their_titles(qtbot, workspace):
    compare = comparing(qtbot, workspace, 500)
    table = compare.sessions
    assert table.textElideMode() == Qt.TextElideMode.ElideMiddle
    assert max(len(session.title) for session in compared()) > 20
    header = table.horizontalHeader()
    roomy_px = ROOMY * table.fontMetrics().averageCharWidth()
    needed_px = min(table.sizeHintForColumn(0), roomy_px)
    for width in range(1100, 660, -20):
        compare.resize(width, 500)
        qtbot.waitUntil(lambda: header.length() <= table.viewport().width())
        has_given_way = table.isColumnHidden(4) and table.isColumnHidden(5)
        assert table.columnWidth(0) >= needed_px or has_given_way
        assert table.columnWidth(0) >= table.columnWidth(1)
        assert not table.isColumnHidden(3), "the median stays"
    assert has_given_way
    steps = f"{compare.result.comparison.arms[0].summary.n} steady steps"
    assert steps in table.item(0, 3).toolTip()


def test_a_heading_that_does_not_fit_ends_in_an_ellipsis(qtbot, complete_window, ready):
    headers = [table.horizontalHeader() for table in ready.findChildren(QTableView)]
    named = [header for header in headers if not header.isHidden()]
    assert len(named) > 5
    assert all(header.textElideMode() == Qt.TextElideMode.ElideRight for header in named)
    ready.workspace.session.show(session())
    header = ready.dock_area.docks["segments"].widget().table.horizontalHeader()
    qtbot.waitUntil(lambda: header.count() > 5)
    at, role = Qt.Orientation.Horizontal, Qt.ItemDataRole.ToolTipRole
    for column in range(header.count()):
        heading = str(header.model().headerData(column, at))
        assert heading in str(header.model().headerData(column, at, role)), "pointing shows all"


@pytest.mark.parametrize("theme", [LIGHT, DARK])
@pytest.mark.parametrize(("enabled", "least"), [(True, 4.5), (False, 2.0)])
def test_what_a_field_asks_for_can_be_read_before_it_is_filled(qtbot, ready, theme, enabled, least):
    ready.set_theme(theme.name)
    alone = QLineEdit()
    qtbot.addWidget(alone)
    alone.setPlaceholderText("values between commas")
    alone.setFixedSize(240, 26)
    alone.setEnabled(enabled)
    alone.show()
    levels = luminances(alone.grab().toImage())
    ground = float(np.median(levels))
    ink = max(levels.min(), levels.max(), key=lambda level: abs(level - ground))
    low, high = sorted((ground, ink))
    assert (high + 0.05) / (low + 0.05) >= least


def luminances(image: QImage) -> np.ndarray:
    """The relative luminance of the inner pixels, as WCAG defines it."""
    inner = image.copy(image.rect().adjusted(4, 4, -4, -4)).convertToFormat(
        QImage.Format.Format_RGB32
    )
    rows = np.frombuffer(inner.constBits(), np.uint8).reshape(inner.height(), -1, 4)
    share = rows[..., 2::-1] / 255.0
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return linear @ np.array([0.2126, 0.7152, 0.0722])


def test_the_tables_of_a_comparison_and_an_attribution_stay_in_reach(qtbot, workspace):
    compare = comparing(qtbot, workspace, 300)
    row = compare.sessions.rowHeight(0)
    assert row > 0
    qtbot.waitUntil(lambda: compare.sessions.viewport().height() >= 1.5 * row)
    workspace.session.shown = Session(title="attributed")
    workspace.session.shown.studies.append(attribution_samples.study())
    panel = panel_list.attribution(workspace)
    qtbot.addWidget(panel)
    panel.resize(BESIDE_PX, 300)
    panel.show()
    line = panel.fontMetrics().height()
    plot = panel.chart.canvas
    qtbot.waitUntil(lambda: plot.vb.height() > 0)
    names = plot.axis("left").categories
    assert plot.vb.height() / len(names) >= 0.9 * line, "names lie over one another"
    assert panel.table.height() >= 100


def test_why_no_verdict_can_be_asked_for_has_a_line_of_its_own(qtbot, verdict_panel):
    panel = verdict_panel
    panel.resize(BESIDE_PX, 400)
    qtbot.waitUntil(panel.table.isVisible)
    assert panel.progress.isVisible() == bool(panel.progress.text())
    panel.progress.setText("No other configuration has run yet: press Run, then change a toggle.")
    panel.progress.show()
    qtbot.waitUntil(lambda: panel.progress.width() > 0.8 * BESIDE_PX)
    assert panel.progress.geometry().top() > panel.judge.geometry().bottom()


def test_an_empty_comparison_says_that_it_is_at_work_and_then_what_it_needs(
    qtbot, workspace, monkeypatch
):
    first, *rest = compared()
    workspace.session.shown = first
    panel = panel_list.compare(workspace)
    qtbot.addWidget(panel)
    panel.show()
    text, go_on = panel._empty._line.text, threading.Event()
    assert text() == NOTHING[0]

    def when_allowed(*given):
        assert go_on.wait(HANG_S)
        return work_out(*given)

    monkeypatch.setattr("workbench.ui.panels.compare.work_out", when_allowed)
    workspace.compared.add(rest[0])
    qtbot.waitUntil(lambda: text() == "Comparing 2 sessions")
    go_on.set()
    qtbot.waitUntil(lambda: panel.result is not None and panel.result.comparison is not None)
    workspace.compared.remove(rest[0])
    qtbot.waitUntil(lambda: text() == NOTHING[0])


@pytest.mark.parametrize("theme", [DARK, LIGHT])
def test_a_section_that_a_report_cannot_have_says_why_in_readable_ink(qtbot, theme):
    box = QListWidget()
    qtbot.addWidget(box)
    box.setStyleSheet(stylesheet.sheet(theme))
    box.setPalette(stylesheet.palette(theme))
    item = QListWidgetItem("HHHHHHHH (No claim of a document was measured.)")
    item.setFlags(Qt.ItemFlag.NoItemFlags)
    box.addItem(item)
    box.resize(400, 40)
    image = box.grab().toImage()
    row = box.visualItemRect(item)
    pixels = {
        image.pixelColor(x, y).getRgbF()[:3]
        for x in range(row.left() + 4, row.left() + 100)
        for y in range(row.top() + 2, row.bottom() - 2)
    }
    lights = [_luminance(pixel) for pixel in pixels]
    assert (max(lights) + 0.05) / (min(lights) + 0.05) >= 4.5


def _luminance(color: tuple[float, float, float]) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def test_a_long_title_hides_nothing_of_the_toolbar_and_is_told_whole(qtbot, window):
    words = "everything that the person who named it wanted to say " * 6
    window.workspace.session.rename(words)

    def right_end(button: QToolButton) -> int:
        return button.mapTo(window, button.rect().bottomRight()).x()

    for width in (1024, 1600):
        window.resize(width, 700)
        qtbot.wait(50)
        buttons = window.toolbar.findChildren(QToolButton)
        (find,) = (
            button for button in buttons if button.defaultAction() is window.actions_["palette"]
        )
        qtbot.waitUntil(lambda width=width, find=find: right_end(find) < width)
        assert find.isVisible()
        qtbot.waitUntil(lambda: "…" in window._title.text())
        assert window._title.isVisible()
        assert words.split() == window._title.toolTip().split()
    window.workspace.session.rename("short")
    qtbot.waitUntil(lambda: window._title.text() == "short")
    assert not window._title.toolTip()
