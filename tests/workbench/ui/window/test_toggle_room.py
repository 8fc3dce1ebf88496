"""Rows of toggles of the real catalogue in windows of several sizes, by their geometry."""

from __future__ import annotations

import dataclasses
import itertools

import msgspec
import pytest
from fake_session import messages
from PySide6.QtCore import QPoint, QRect
from PySide6.QtWidgets import QScrollArea, QWidget
from shown_window import opened

from workbench.client.recorder import Recorder
from workbench.theming.theme import DARK
from workbench.ui.controllers.toggle_verdicts import ToggleVerdict
from workbench.ui.docks import LEFT_SHARE
from workbench.ui.menus.option_picker import NoWheelComboBox
from workbench.ui.panels._toggle_row import RowState
from workbench.ui.workspace import Workspace

LONG = 16  # letters: longer options may be elided, such as a pipeline schedule


@pytest.fixture
def window(qapp, qtbot, settings, monkeypatch):
    """A fresh window with the toggles of the real runner."""
    monkeypatch.setattr("workbench.ui.panel_list.live", lambda workspace: QWidget())
    workspace = Workspace()
    with opened(qapp, workspace, settings) as window:
        window.squeezed = []
        for changed in (
            workspace.configuration.catalogueChanged,
            workspace.configuration.availabilityChanged,
        ):  # before the event loop goes on: it may be busy, or the window be resized
            changed.connect(lambda: window.squeezed.extend(squeezed(window.toggles)))
        workspace.run.start_runner()
        qtbot.waitUntil(
            lambda: (
                workspace.run.state == "idle" and workspace.configuration.availability is not None
            )
        )
        yield window
    workspace.close()


def squeezed(panel):
    """The rows with less height than they need."""
    return [
        row.toggle.name
        for row in panel.rows.values()
        if row.isVisible() and row.height() < row.minimumSizeHint().height()
    ]


def visible_rows(panel):
    """The rows that lie wholly inside what is scrolled into view."""
    first = next(iter(panel.rows.values()))
    area = next(area for area in panel.findChildren(QScrollArea) if area.isAncestorOf(first))
    viewport = area.viewport()
    room = QRect(viewport.mapToGlobal(QPoint(0, 0)), viewport.size())
    return [
        row
        for row in panel.rows.values()
        if row.isVisible() and room.contains(QRect(row.mapToGlobal(QPoint(0, 0)), row.size()))
    ]


def test_rows_have_their_room_as_soon_as_the_toggles_are_known(qtbot, panel):
    """For a moment all rows were squeezed into the height of the window, over one another."""
    panel.resize(320, 200)
    panel.rows.clear()
    panel._fill()
    rows = [row for row in panel.rows.values() if row.isVisible()]
    assert len(rows) > 5
    assert all(row.height() >= row.minimumSizeHint().height() for row in rows)


def test_a_bar_that_comes_grows_and_leaves_moves_no_toggle_under_the_mouse(qtbot, panel):
    panel.resize(340, 330)
    qtbot.waitUntil(lambda: len(visible_rows(panel)) > 4)
    row, bar = visible_rows(panel)[-1], panel.verdict.bar
    line, before = ("Compute: did it help?", "verdict", "accent"), row.mapTo(panel, QPoint())
    for count in (1, 3, 2):
        bar.say("info", [line] * count, [("Verdict", lambda: None)], DARK)
        qtbot.wait(20)
        assert bar.isVisible() and row.mapTo(panel, QPoint()) == before
    bar.leave()
    qtbot.wait(20)
    assert row.mapTo(panel, QPoint()) == before


def test_a_bar_does_not_cover_the_toggle_that_was_chosen(qtbot, panel):
    panel.resize(340, 330)
    qtbot.waitUntil(lambda: len(visible_rows(panel)) > 4)
    row = visible_rows(panel)[0]
    panel._choose(row.toggle.name, row.toggle.options[1].name)
    panel.verdict.bar.say("info", [("It helps.", "", "")] * 3, [], DARK)
    qtbot.wait(20)
    assert row in visible_rows(panel)


def test_fifteen_toggles_are_visible_and_nothing_is_squeezed(qtbot, window):
    assert not window.squeezed
    panel = window.toggles

    def has_room(row) -> bool:
        right = row.picker.mapTo(panel, QPoint(row.picker.width(), 0)).x()
        return row.height() >= row.picker.minimumSizeHint().height() and right <= panel.width()

    window.resize(1440, 900)
    window.dock_area.proportion()
    qtbot.waitUntil(lambda: len(visible_rows(panel)) >= 15)
    for size in ((900, 600), (1366, 768), (1440, 900), (1920, 1080)):
        window.resize(*size)
        window.dock_area.proportion()
        qtbot.waitUntil(lambda: len(visible_rows(panel)) > 0)
        qtbot.wait(50)
        least = 4 if size[1] == 600 else 8
        qtbot.waitUntil(lambda least=least: len(visible_rows(panel)) > least)
        qtbot.waitUntil(lambda: all(map(has_room, visible_rows(panel))))
        rows = visible_rows(panel)
        tops = sorted((row.mapToGlobal(QPoint(0, 0)).y(), row.height()) for row in rows)
        for (top, height), (below, _) in itertools.pairwise(tops):
            assert top + height <= below, size


def test_a_row_has_room_for_the_result_of_its_verdict(qtbot, window):
    recorder = Recorder()
    for message in messages("verdict"):
        recorder.record(message)
    measured = recorder.session.comparisons[0]
    comparison = msgspec.structs.replace(
        measured, ratio=0.81, low=0.79, high=0.83, verdict="FASTER"
    )
    fine = {"ok": True, "reference": "float64", "text": "right"}
    comparison.facts["numerics"] = {"0": fine, "1": fine}
    window.resize(1440, 900)
    window.dock_area.proportion()
    row = window.toggles.rows["adamw"]
    row.show_state(
        RowState("fused", verdict=ToggleVerdict("loop", "fused", comparison)),
        window.workspace.theme.current,
    )
    qtbot.waitUntil(lambda: row.result.text() == "1.23x faster, results match")
    assert "95 % interval" in row.mark.toolTip()
    verdict = ToggleVerdict("loop", "fused", comparison)
    newer = dataclasses.replace(verdict, newer=verdict)
    row.show_state(RowState("fused", verdict=newer), window.workspace.theme.current)
    qtbot.waitUntil(lambda: row.result.text() == "older: 1.23x faster, results match")
    tip = " ".join(row.mark.toolTip().split())  # without the breaks of its lines
    assert "newer, paired by a run: Fused against Loop: 1.23x faster" in tip


@pytest.mark.parametrize("points", [9, 14])
def test_a_default_window_shows_titles_and_usual_options_without_an_ellipsis(qtbot, window, points):
    before = window.appearance.font_points
    window.appearance.choose_font(points)
    window.resize(1280, 900)
    window.reset_layout()
    panel = window.toggles
    rows = [row for row in panel.rows.values() if row.isVisible()]
    share = LEFT_SHARE if points == 9 else 1.1 * LEFT_SHARE
    try:
        build = window.dock_area.docks["build"]
        qtbot.waitUntil(lambda: share * 1280 - 2 <= build.width() < 0.45 * 1280)
        qtbot.waitUntil(lambda: elided_titles(rows) == [])
        assert elided_options(rows) == []
    finally:
        window.appearance.choose_font(before)


def test_a_wide_row_shows_long_options_without_an_ellipsis(qtbot, panel):
    row = panel.rows["compile"]
    box = row.picker.findChild(NoWheelComboBox)
    row.picker.set_value("reduce-overhead")
    panel.resize(310, 400)
    qtbot.waitUntil(lambda: row.width() <= 310)
    narrow = row.picker.width()
    panel.resize(460, 400)
    qtbot.waitUntil(lambda: row.width() > 400)
    assert box._elided(box.currentText()) == "reduce-overhead"
    panel.resize(1400, 400)
    qtbot.waitUntil(lambda: row.width() > 1300)
    assert narrow < row.picker.width() < 2 * narrow
    panel.resize(310, 400)
    qtbot.waitUntil(lambda: row.picker.width() == narrow)


def elided_titles(rows):
    return [row.toggle.title for row in rows if row._title.text() != row.toggle.title]


def elided_options(rows):
    boxes = [row.picker.findChild(NoWheelComboBox) for row in rows]
    texts = [(box, box.currentText()) for box in boxes if box is not None]
    return [text for box, text in texts if box._elided(text) != text and len(text) < LONG]
