"""A session from a stranger in the window with every panel: drawn, plain text, and no failure.

``WORKBENCH_FUZZED_WINDOWS=200`` opens that many changed files in place of a few.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from pathlib import Path

import msgspec
import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication, QLabel, QMenu, QTextEdit, QToolTip, QWidget

sys.path.insert(0, str(Path(__file__).parents[2] / "fuzzing"))

import fuzz_sessions
from complete_session import everything
from shown_window import opened

from sessions.errors import SessionError
from sessions.model import Event, Session
from sessions.storage import _write, hdf5
from workbench.ui.panels.lazy_panel import LazyPanel
from workbench.ui.window import MainWindow

COUNT = int(os.environ.get("WORKBENCH_FUZZED_WINDOWS", "4"))
MARKUP = "<img src='file:///etc/passwd'><b>bold</b> <a href='x'>link</a>"


@pytest.fixture
def full_window(qapp, qtbot, workspace, settings):
    """The real window with each panel made and shown."""
    with opened(qapp, workspace, settings) as window:
        window.resize(1600, 1000)
        for dock in window.dock_area.docks.values():
            if isinstance(dock.widget(), LazyPanel):
                dock.widget().panel()
            dock.show()
        yield window


def marked() -> Session:
    """A session with markup in every text that a panel shows."""
    session = everything()
    session.title = session.notes = MARKUP
    session.environment = {MARKUP: MARKUP, "gpu": MARKUP}
    session.events = [Event(1.0, "note", MARKUP), Event(float("nan"), MARKUP, MARKUP)]
    for segment in session.segments[:4]:
        segment.label = MARKUP
        segment.configuration = msgspec.structs.replace(segment.configuration, preset=MARKUP)
        segment.evidence = [
            msgspec.structs.replace(evidence, text=MARKUP) for evidence in segment.evidence
        ]
        segment.ledger |= {"numbers": MARKUP, "numbers_right": False, "text": MARKUP}
        segment.metrics = {
            name: dataclasses.replace(series, title=MARKUP, row=MARKUP)
            for name, series in segment.metrics.items()
        }
    session.studies = [dataclasses.replace(study, title=MARKUP) for study in session.studies]
    session.comparisons = [
        msgspec.structs.replace(
            comparison,
            arms=[MARKUP, MARKUP],
            facts=comparison.facts | {"reasons": [MARKUP], "others": MARKUP},
        )
        for comparison in session.comparisons
    ]
    session.telemetry = {MARKUP: session.telemetry["gpu0"]}
    return session


def shown_text(text: str) -> str:
    """The text of a menu's entry or a button as Qt draws it: "&" underlines what follows it."""
    return re.sub("&(.)", r"\1", text)


def show(qtbot, window: MainWindow, path: Path) -> None:
    """Open a file and bring every panel to the front once."""
    before = window.workspace.session.shown
    window.open_path(path)
    workspace = window.workspace
    qtbot.waitUntil(
        lambda: workspace.session.shown is not before or bool(workspace.failures.recent),
    )
    assert not workspace.failures.recent, workspace.failures.recent
    for dock in window.dock_area.docks.values():
        dock.raise_()
        dock.widget().repaint()
        QApplication.processEvents()
    window.workspace.tasks.wait()
    QApplication.processEvents()


def test_markup_of_a_file_is_shown_as_text_in_every_widget(qtbot, full_window, tmp_path):
    path = tmp_path / "marked.h5"
    path.write_bytes(_write.image(marked()))
    show(qtbot, full_window, path)
    assert not full_window.workspace.failures.recent, full_window.workspace.failures.recent
    shown = 0
    for widget in QApplication.allWidgets():
        if isinstance(widget, QLabel) and "<" in widget.text():
            plain = widget.textFormat() == Qt.TextFormat.PlainText
            assert plain or widget.property("markup"), widget.text()
            assert "<img" not in widget.text() or plain
            shown += 1
        if isinstance(widget, QTextEdit):
            assert "<img" not in widget.toHtml()
            shown += "<img" in widget.toPlainText()
    assert shown > 2


def test_an_ampersand_of_a_name_is_shown_in_menus_and_buttons(qtbot, ready, tmp_path):
    workspace, name = ready.workspace, "R&D"
    path = tmp_path / f"{name}.h5"
    hdf5.save(Session(title=name), path)
    ready.settings.remember(path)
    ready.settings.save_named_layout(name, ready.dock_area.save_layout())
    ready.settings.save_preset(name, workspace.configuration.edited)
    workspace.presets.save(name)
    sets = ready.sweep.presets.menu()
    qtbot.waitUntil(lambda: bool(sets.actions()))
    assert name in [shown_text(action.text()) for action in sets.actions()]
    menus = {menu.title(): menu for menu in ready.findChildren(QMenu)}
    for title in ("Open recent", "Saved configurations", "Toggle sets", "Layouts"):
        menus[title].aboutToShow.emit()
        actions = [menus[title], *menus[title].findChildren(QMenu)]
        texts = [action.text() for menu in actions for action in menu.actions()]
        assert any(name in shown_text(text) for text in texts), title


def test_a_tooltip_shows_markup_as_text(qtbot, full_window):
    QToolTip.showText(QPoint(50, 50), MARKUP, full_window)
    tips = [w for w in QApplication.allWidgets() if w.inherits("QTipLabel")]
    assert tips and all(tip.textFormat() == Qt.TextFormat.PlainText for tip in tips)
    QToolTip.hideText()


def test_changed_files_are_drawn_or_refused_with_a_sentence(qtbot, full_window, tmp_path):
    contents, window, number, drawn = fuzz_sessions.bases(), full_window, 0, 0
    while drawn < COUNT:
        path = tmp_path / f"{number}.h5"
        done = fuzz_sessions.make(path, number, contents)
        number += 1
        try:
            hdf5.save(hdf5.load(path), path)  # the window need not check it again
        except SessionError as error:
            fuzz_sessions.require_sentence(str(error))
            continue
        drawn += 1
        show(qtbot, window, path)
        assert not window.workspace.failures.recent, (
            number,
            done,
            window.workspace.failures.recent,
        )
        broken = [
            label.text()
            for label in window.findChildren(QWidget)
            if isinstance(label, QLabel) and "could not be drawn" in label.text()
        ]
        assert not broken, (number, done, broken)
