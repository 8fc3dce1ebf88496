"""Dialogs: where the keyboard focus is, and what they show."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_catalogue import catalogue
from PySide6.QtWidgets import QDialog, QFileDialog, QMessageBox, QPlainTextEdit

from workbench import protocol
from workbench.ui.dialogs import information, message_boxes, session_dialogs
from workbench.ui.dialogs.help import HelpDialog
from workbench.ui.menus.actions import ACTIONS
from workbench.ui.panels._plot_keys import PLOT_KEYS


def opened(window) -> QDialog:
    (dialog,) = (dialog for dialog in window.findChildren(QDialog) if dialog.isVisible())
    return dialog


def test_notes_can_be_typed_at_once_after_those_that_are_there(window):
    window.workspace.session.shown.notes = "before"
    session_dialogs.notes(window, window.workspace.session)
    dialog = opened(window)
    edit = dialog.findChild(QPlainTextEdit)
    assert dialog.focusWidget() is edit and edit.textCursor().position() == len("before")
    dialog.reject()


@pytest.mark.parametrize("typed", ["after", ""])
def test_notes_become_what_was_typed_and_nothing_is_typed_too(window, typed):
    window.workspace.session.shown.notes = "before"
    session_dialogs.notes(window, window.workspace.session)
    dialog = opened(window)
    dialog.findChild(QPlainTextEdit).setPlainText(typed)
    dialog.accept()
    assert window.workspace.session.shown.notes == typed


def test_every_shortcut_is_listed_beside_what_it_does(window):
    window.actions_["shortcuts"].trigger()
    lines = opened(window).findChild(QPlainTextEdit).toPlainText().splitlines()
    for action in ACTIONS:
        if action.shortcut and action.menu:
            assert any(line.split() and line.split()[0] == action.shortcut for line in lines), (
                action.id
            )
    assert "File" in lines and not any("&" in line for line in lines)
    for key in PLOT_KEYS:
        (line,) = [line for line in lines if line.startswith(f"  {', '.join(key.keys)} ")]
        assert line.endswith(f" {key.text}")


def test_the_doctor_ends_each_sentence(workspace):
    workspace.router.route(catalogue())
    reason = protocol.Blocked("xformers is not installed", "Install the extra")
    workspace.configuration.availability = protocol.Availability(
        configuration=workspace.configuration.edited,
        problems=[],
        blocked={"attention": {"xformers": reason}},
    )
    text = information.doctor_text(workspace.configuration, workspace.session.titles)
    assert "Attention backend: xFormers: xformers is not installed. Install the extra." in text


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("named", "written", "asks"),
    [
        ("run", "run.h5", True),
        ("run.h5", "run.h5", False),  # Qt has asked
        ("lr0.5", "lr0.5.h5", False),
        ("run.journal", "run.journal.h5", False),
    ],
)
@pytest.mark.parametrize("answer", ["Yes", "No"])
def test_a_name_without_its_ending_replaces_no_file_unasked(
    ready, tmp_path, monkeypatch, named, written, asks, answer
):
    (tmp_path / "run.h5").write_bytes(b"measured for days")
    questions, saved = [], []

    def question(parent, title, text, *buttons):
        questions.append(text)
        return QMessageBox.StandardButton[answer]

    monkeypatch.setattr(QMessageBox, "question", question)
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(tmp_path / named), ""))
    monkeypatch.setattr(ready, "save_path", lambda path, then: saved.append(path))
    session_dialogs.save_as(ready, ready.workspace.session, ready.save_path)
    assert questions == (["run.h5 exists already. Replace it?"] if asks else [])
    assert saved == ([] if asks and answer == "No" else [tmp_path / written])


@pytest.mark.parametrize(
    "title", ["long " * 200, "\u05e9\u05dc\u05d5\u05dd" * 250, "\U0001d4d0" * 300]
)
def test_a_file_name_that_is_suggested_for_a_long_title_can_be_written(tmp_path, title):
    """File systems allow names of 255 bytes; the name of a title of 1,000 letters could not be."""
    message_boxes.use_folder(tmp_path)
    try:
        path = Path(message_boxes.suggested(title, ".workbench.html"))
    finally:
        message_boxes.use_folder(None)
    path.write_text("written")
    assert path.parent == tmp_path and path.name.endswith(".workbench.html")
    assert path.name[0] in (title[0], "s")


def test_titles_of_help_pages_take_no_more_width_than_they_need(qtbot, large_type):
    large_type.actions_["help-commands"].trigger()
    help_dialog = large_type.findChild(HelpDialog)
    needed = help_dialog.titles.sizeHintForColumn(0)
    assert needed < help_dialog.titles.width() <= needed + 20
    assert help_dialog.page.toMarkdown().startswith("# Commands")
    help_dialog.close()
