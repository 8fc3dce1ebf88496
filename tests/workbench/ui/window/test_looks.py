"""Appearance of panels: figures in line, nothing cut off, one colour for one meaning, no jumps."""

from __future__ import annotations

import attribution_samples
import claims_samples
import msgspec
import numpy as np
import pytest
from fake_catalogue import catalogue
from fake_session import session
from PySide6.QtCore import QEvent, QPoint, Qt
from PySide6.QtGui import QFontMetrics, QHelpEvent
from PySide6.QtWidgets import (
    QApplication,
    QComboBox,
    QLabel,
    QMenu,
    QPushButton,
    QTextEdit,
    QToolTip,
    QVBoxLayout,
    QWidget,
)
from test_dock_layout import drag_separator

from sessions.model import Configuration, Session
from sessions.numbers import MISSING
from sessions.studies import claims
from sessions.tables import Column, Table
from workbench import protocol
from workbench.plots._arms import WITHOUT, apart
from workbench.theming.theme import DARK
from workbench.ui import panel_list
from workbench.ui.menus.option_picker import OptionPicker
from workbench.ui.panels._bar import Bar
from workbench.ui.panels._compare_tables import DifferencesTable
from workbench.ui.panels._table import FIGURE_SPACE, POINT_SPACE, PlainTable, aligned, headed
from workbench.ui.panels._table_view import TableView
from workbench.ui.panels._widgets import BRIEF, brief_note
from workbench.ui.status import StatusBar, clock_text


def test_points_of_a_column_stand_above_another_and_the_text_is_the_same(qapp):
    texts = ["19", "15.7", "1,024", "−0.25", MISSING, "below 0.001"]
    filled = aligned(texts)
    assert [text.rstrip() for text in filled] == texts
    metrics = QFontMetrics(QLabel().font())
    ends = {metrics.horizontalAdvance(text) - _integer_px(metrics, text) for text in filled[:4]}
    assert max(ends) - min(ends) <= 2, "from the point to the right edge"
    assert filled[4:] == texts[4:]
    assert aligned(["1", "20"]) == ["1", "20"] and aligned(["0.12345", "7"]) == ["0.12345", "7"]


def _integer_px(metrics: QFontMetrics, text: str) -> int:
    return metrics.horizontalAdvance(text.strip().partition(".")[0])


@pytest.mark.parametrize("kind", [PlainTable, TableView, DifferencesTable])
def test_what_is_copied_from_a_table_by_its_menu_has_no_filling(qtbot, qapp, kind):
    view = kind()
    qtbot.addWidget(view)
    view.show_table(Table("t", [Column("name"), Column("us", "µs")], [["a", 2], ["b", 1.25]]))
    assert view.item(0, 1).text() == f"2{POINT_SPACE}{2 * FIGURE_SPACE}"
    view.show_table(view.table)
    assert view.contextMenuPolicy() == Qt.ContextMenuPolicy.CustomContextMenu
    view.customContextMenuRequested.emit(view.rect().center())
    (menu,) = view.findChildren(QMenu)
    markdown, csv = menu.actions()
    markdown.trigger()
    assert qapp.clipboard().text().startswith("### t\n")
    csv.trigger()
    assert qapp.clipboard().text().split() == ["name,us", "(µs)", "a,2", "b,1.25"]


@pytest.mark.parametrize(
    ("heading", "shown"),
    [("time ratio", "Time ratio"), ("p95 (ms)", "p95 (ms)"), ("A", "A"), ("p (Holm)", "p (Holm)")],
)
def test_headings_begin_with_a_capital_and_symbols_stay(heading, shown):
    assert headed(heading) == shown


def test_arms_are_told_apart_by_what_differs():
    rest = "Triton kernels, all: On, AdamW: Fused"
    assert apart(f"Checkpointing: Full, {rest}", rest) == ("Checkpointing: Full", WITHOUT)
    assert apart("Triton kernels, all: On", "Triton kernels, all: Off") == (
        "Triton kernels, all: On",
        "Triton kernels, all: Off",
    )
    assert apart("defaults", "defaults") == ("defaults", "defaults")


def test_claims_are_counted_in_grammar():
    rows = [row for row in claims_samples.rows() if row.result in (claims.HOLDS, claims.FAILS)]
    holds = next(row for row in rows if row.result == claims.HOLDS)
    fails = next(row for row in rows if row.result == claims.FAILS)
    assert claims.count([holds, fails]) == "2 claims: 1 holds, 1 does not hold"
    assert claims.count([holds] * 2 + [fails] * 3) == "5 claims: 2 hold, 3 do not hold"


def test_a_bars_line_stands_level_with_its_button(qtbot):
    host, bar = QWidget(), Bar(lambda: None)
    qtbot.addWidget(host)
    column = QVBoxLayout(host)
    column.addWidget(bar)
    column.addWidget(QTextEdit(), 1)
    bar.say("info", [("did it help?", "info", "accent")], [("Verdict", lambda: None)], DARK)
    host.resize(330, 400)
    host.show()
    qtbot.waitUntil(lambda: 0 < bar.height() < 60)
    button = bar.findChild(QPushButton)
    mark, text = bar.findChildren(QLabel)
    middles = [
        widget.mapTo(bar, widget.rect().center()).y()
        for widget in (button, mark, text)
        if widget is not None
    ]
    assert max(middles) - min(middles) <= 2, middles


def test_an_attributions_words_have_the_colours_of_verdicts_and_its_notes_are_whole(
    qtbot, workspace
):
    workspace.session.shown = Session(title="attributed")
    workspace.session.shown.studies.append(attribution_samples.study(memory=False))
    panel = panel_list.attribution(workspace)
    qtbot.addWidget(panel)
    panel.resize(1084, 580)  # as in a window of 1440 x 900
    panel.show()
    assert panel.headline.property("tone") == "good"
    table = panel.table
    columns = [table.horizontalHeaderItem(index).text() for index in range(table.columnCount())]
    verdict, note = columns.index("Verdict"), columns.index("Note")
    tones = {table.item(row, verdict).text(): table.item(row, verdict).foreground().color().name()
             for row in range(table.rowCount())}  # fmt: skip
    theme = workspace.theme.current
    assert tones["FASTER"] == theme.good and tones["SLOWER"] == theme.bad

    def is_complete() -> bool:
        rows = range(table.rowCount())
        return all(
            table.sizeHintForRow(row) <= table.rowHeight(row) <= 80 and table.item(row, note).text()
            for row in rows
        )

    qtbot.waitUntil(is_complete)
    assert table.isColumnHidden(columns.index("Memory ratio")), "there is nothing in it"


def test_the_left_column_is_never_narrower_than_its_texts(qtbot, window):
    docks = window.dock_area.docks
    qtbot.waitUntil(lambda: docks["build"].width() > 340)
    window.dock_area.resizeDocks(
        [docks["build"], docks["live"]], [100, 1180], Qt.Orientation.Horizontal
    )
    qtbot.waitUntil(lambda: docks["build"].width() < 340)
    for name in ("build", "toggles"):
        assert docks[name].width() >= 300


def test_a_wider_window_is_wider_where_the_plots_are(qtbot, window):
    docks = window.dock_area.docks
    qtbot.waitUntil(lambda: 410 < docks["build"].width() < 440)
    window.resize(1900, 1000)
    qtbot.waitUntil(lambda: window.dock_area.width() > 1800)
    qtbot.waitUntil(lambda: docks["build"].width() < 440)
    assert docks["live"].width() > 1400
    drag_separator(qtbot, window, 500 - docks["build"].width())
    window.resize(1500, 900)
    qtbot.waitUntil(lambda: window.dock_area.width() < 1600)
    qtbot.waitUntil(lambda: 480 < docks["build"].width() < 520)


@pytest.fixture
def offered(workspace):
    """The window's workspace with a catalogue and a configuration, without a runner."""
    workspace.router.route(catalogue())
    assert workspace.configuration.edited is not None
    return workspace


def test_the_status_bar_keeps_its_height_when_progress_comes_and_goes(qtbot, offered):
    bar = StatusBar(
        offered.session, offered.run, offered.configuration, offered.run_control, offered.theme
    )
    qtbot.addWidget(bar)
    bar.show()
    idle = bar.height()
    offered.run.progress = protocol.Progress(task="compile", fraction=0.25, text="3 of 12")
    offered.run.set_state("building", "")
    qtbot.waitUntil(bar._progress.isVisible)
    bar.close_timer()
    assert bar._cancel.isVisible()
    assert bar.height() == bar.minimumHeight() == bar.maximumHeight() == idle
    assert bar._cancel.sizeHint().height() < idle


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.9, "00:00:00"), (3661, "01:01:01"), (86400, "24:00:00"), (400000, "111:06:40")],
)
def test_the_time_of_a_run_counts_on_after_a_day(seconds, expected):
    assert clock_text(seconds) == expected


def test_the_status_bar_tells_sizes_and_rates_as_plots_do(qtbot, offered):
    bar = StatusBar(
        offered.session, offered.run, offered.configuration, offered.run_control, offered.theme
    )
    qtbot.addWidget(bar)
    offered.session.shown = offered.session.recorder.session = session()
    offered.run.state = "running"
    steps = offered.session.shown.segments[-1].steps
    rate, memory = bar._facts["rate"], bar._facts["memory"]
    bar._show_numbers()
    assert "e+" not in rate.text() and rate.text().endswith(" steps/s")
    assert memory.text() == f"{steps['allocated'][-1] / 2**30:.1f} GiB allocated"
    steps["allocated"][-1] = 512.4 * 2**20
    steps["t_s"][:] = steps["t_s"][0] + 1e-7 * np.arange(len(steps["t_s"]))
    bar._show_numbers()
    assert (rate.text(), memory.text()) == ("10000000 steps/s", "512 MiB allocated")
    bar._arrived -= 12
    bar._show_numbers()
    assert rate.text() == "no step for 12 s", "the rate would claim that steps go on"
    offered.run.measures = True  # it sends no single steps
    bar._show_numbers()
    assert rate.text() == "10000000 steps/s"
    steps["allocated"][-1] = np.nan  # as of kernels that are timed
    bar._show_numbers()
    assert not rate.text() and not memory.text()


KERNELS = Configuration(family="kernels", preset="", settings={"case": "8x8", "dtype": "float32"})


def test_no_toggle_is_on_its_way_while_kernels_are_timed(offered):
    offered.run.set_state("running", "Timing kernels")
    offered.run.running = KERNELS
    assert not offered.configuration.pending
    other = {**offered.configuration.edited.toggles, "precision": "amp_bf16"}
    offered.run.running = msgspec.structs.replace(offered.configuration.edited, toggles=other)
    assert list(offered.configuration.pending) == ["precision"]


def test_a_replay_of_a_benchmark_leaves_the_forms_as_they_are(offered):
    before = offered.configuration.edited
    offered.run.replaying = True
    started = protocol.SegmentStarted(index=0, configuration=KERNELS, label="rms_norm")
    assert offered.session.segmentsChanged in offered.router.route(started)
    assert offered.configuration.edited == before
    known = msgspec.structs.replace(before, seed=7)
    offered.router.route(protocol.SegmentStarted(index=1, configuration=known, label="other"))
    assert offered.configuration.edited == known


def test_long_names_of_arms_leave_the_numbers_of_a_sweep_in_sight(qtbot, qapp):
    table = PlainTable()
    qtbot.addWidget(table)
    columns = [Column("sequence"), Column("arm"), Column("step time", "ms"), Column("note")]
    arm = "Gradient checkpointing: Every block, Shared RoPE cache: Shared, AdamW: Fused"
    table.show_table(Table("points", columns, [["16", arm, 12.5, ""], ["32", arm, 25.0, ""]]))
    table.resize(520, 200)
    table.show()
    assert table.columnViewportPosition(2) > 520, "the names alone fill it"
    table.narrow(160)
    assert table.columnWidth(1) == 160 and table.item(0, 1).toolTip() == arm
    assert table.columnViewportPosition(2) + table.columnWidth(2) < 520


def test_a_narrow_column_has_room_for_its_words_in_every_style(qtbot):
    table = PlainTable()
    qtbot.addWidget(table)
    table.show_table(Table("t", [Column("verdict"), Column("note")], [["UNDECIDED", "n"]] * 2))
    table.narrow(184)
    table.resize(600, 200)
    table.show()
    table.setStyleSheet("* { font-size: 15pt; } QTableView::item { padding: 0 12px; }")
    qtbot.wait(10)
    assert table.columnWidth(0) >= table.sizeHintForColumn(0)


def test_a_choice_that_is_elided_is_complete_in_its_tool_tip(qtbot, monkeypatch):
    shown = []
    monkeypatch.setattr(QToolTip, "showText", lambda _, text, widget: shown.append(text))
    picker = OptionPicker([("a", "a choice of the shared setting"), ("b", "short")], 80)
    qtbot.addWidget(picker)
    picker.setToolTip("what it does")
    picker.show()
    box = picker.findChild(QComboBox)
    for choice in ("a", "b"):
        picker.set_value(choice)
        at = QPoint(2, 2)
        QApplication.sendEvent(box, QHelpEvent(QEvent.Type.ToolTip, at, box.mapToGlobal(at)))
    assert shown[0] == "a choice of the shared setting\nwhat it does"
    assert "short" not in "".join(shown)


def test_the_arms_of_a_study_are_no_changes_on_the_way_and_a_failing_one_changes_no_form(offered):
    chosen = offered.configuration.edited
    other = msgspec.structs.replace(chosen, toggles={**chosen.toggles, "precision": "amp_bf16"})
    offered.run.send(protocol.Start(configuration=chosen))
    offered.run.set_state("running", "")
    offered.run.running = other
    assert list(offered.configuration.pending) == ["precision"], "of a run it is"
    offered.run.send(protocol.Sweep(base=chosen, axes={"settings.batch": [1]}, arms=[{}]))
    assert not offered.configuration.pending
    offered.router.route(protocol.Failure(kind="oom", sentence="No memory for this arm."))
    assert offered.configuration.edited == chosen


def test_long_evidence_is_cut_after_a_clause_and_told_whole_where_one_points(qapp):
    backends = "; ".join(f"backend {number} needs a GPU of another kind" for number in range(12))
    text = f"Effective: chose sdpa_math; flash ratio 0.00, of 3 calls; passed over: {backends}"
    note = brief_note(text)
    shown = note.text().removesuffix(" …")
    assert shown != note.text() and len(shown) <= BRIEF
    assert text.startswith(shown) and text[len(shown)] == ";"
    assert "chose sdpa_math; flash ratio 0.00" in shown and backends in " ".join(
        note.toolTip().split()
    )
    assert brief_note("Effective: seen").text() == "Effective: seen"
    unbroken = brief_note("x" * 300)
    assert len(unbroken.text()) <= BRIEF + 2 and unbroken.toolTip().count("x") == 300
