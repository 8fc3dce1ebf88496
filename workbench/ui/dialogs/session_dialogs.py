"""Dialogs about the session: open, save, compare, title and notes, and unsaved work at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from PySide6.QtCore import Qt
from PySide6.QtGui import QTextCursor
from PySide6.QtWidgets import QFileDialog, QInputDialog, QMessageBox, QPlainTextEdit, QWidget

from sessions.plain_text import one_line
from workbench.ui.dialogs import message_boxes, runner_files
from workbench.ui.process.thread_pool import Tasks
from workbench.ui.settings import Settings
from workbench.ui.state import config_edit, session_files
from workbench.ui.state.comparison import ComparisonModel
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.session import SessionModel

_LONGEST_TITLE = 80  # characters


class SavePath(Protocol):
    """Function that writes the session to a file and calls ``then`` once it is saved."""

    def __call__(self, path: Path, then: Callable[[], None] | None = None) -> None:
        """Write the session."""


def open_session(parent: QWidget, open_path: Callable[[Path], None]) -> None:
    """Ask for a file and show its session."""
    _open(parent, open_path, "Open a session", session_files.FILTER)


def open_trace(parent: QWidget, open_path: Callable[[Path], None]) -> None:
    """Ask for a trace or report of another profiler and show it as a session with a profile."""
    _open(parent, open_path, "Open a trace", session_files.TRACE_FILTER)


def _open(parent: QWidget, open_path: Callable[[Path], None], title: str, kinds: str) -> None:
    name, _ = QFileDialog.getOpenFileName(parent, title, message_boxes.folder(), kinds)
    if name:
        open_path(Path(name))


def open_model(parent: QWidget, configuration: ConfigurationModel) -> None:
    """Ask for a Python file and choose the model that it builds."""
    catalogue, edited = configuration.catalogue, configuration.edited
    if catalogue is None or edited is None:
        return
    title = "Open a model: a file whose build() returns it"
    name = runner_files.existing(catalogue, parent, title, "Python (*.py)")
    if name:
        configuration.edit(config_edit.with_own_model(catalogue, edited, name))


def compare(parent: QWidget, compared: ComparisonModel) -> None:
    """Ask for files and put their sessions beside the shown session."""
    names, _ = QFileDialog.getOpenFileNames(
        parent, "Compare with", message_boxes.folder(), session_files.FILTER
    )
    for name in names:
        compared.open(Path(name))


def save(
    parent: QWidget,
    session: SessionModel,
    save_path: SavePath,
    then: Callable[[], None] | None = None,
) -> None:
    """Write the session to its file, or ask for a file if it has none."""
    path = session.path
    if path is None or not session_files.is_session(path):
        save_as(parent, session, save_path, then)
    else:
        save_path(path, then)


def save_as(
    parent: QWidget,
    session: SessionModel,
    save_path: SavePath,
    then: Callable[[], None] | None = None,
) -> None:
    """Ask for a file and write the session there."""
    suggestion = message_boxes.suggested(session.shown.title, session_files.SUFFIX)
    path = message_boxes.file_to_write(
        parent, "Save the session", suggestion, session_files.WRITTEN
    )
    if path is not None:
        save_path(path, then)


def ask_before_closing(
    parent: QWidget, session: SessionModel, save_path: SavePath, close: Callable[[], None]
) -> None:
    """Ask about unsaved work; call ``close`` unless the answer is Cancel."""
    has_journal = session.journal is not None
    box = QMessageBox(parent)
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    box.setWindowTitle("Not saved")
    box.setText(f"{one_line(session.recorder.session.title, _LONGEST_TITLE)!r} is not saved.")
    if has_journal:
        box.setInformativeText("The journal contains it; the next start offers to recover it.")
    buttons = QMessageBox.StandardButton
    box.setStandardButtons(buttons.Save | buttons.Discard | buttons.Cancel)
    box.button(buttons.Discard).setText(
        "Close, keep the journal" if has_journal else "Close without saving"
    )
    box.setDefaultButton(buttons.Save)

    def finish(result: int) -> None:
        if result == buttons.Discard:
            close()
        elif result == buttons.Save:
            session.show_live()
            save(parent, session, save_path, close)

    box.finished.connect(finish)
    box.open()


def report(parent: QWidget, session: SessionModel, compared: ComparisonModel, tasks: Tasks) -> None:
    """Put a report together from the sessions that are shown."""
    from workbench.ui.dialogs.report_dialog import ReportDialog  # brings jinja2

    ReportDialog(session, compared, tasks, parent).open()


def rename(parent: QWidget, session: SessionModel) -> None:
    """Ask for the session's title."""
    message_boxes.ask(parent, "Rename session", "Title", session.shown.title, session.rename)


def notes(parent: QWidget, session: SessionModel) -> None:
    """Ask for the session's notes."""

    def describe(text: str) -> None:
        session.describe(session.shown.title, text)

    dialog = message_boxes.ask(
        parent, "Session notes", "Notes", session.shown.notes, describe, blank=True
    )
    dialog.setOption(QInputDialog.InputDialogOption.UsePlainTextEditForTextInput)
    dialog.resize(480, 280)
    edit = dialog.findChild(QPlainTextEdit)
    assert edit is not None
    edit.setFocus()  # and not OK
    edit.setTabChangesFocus(True)
    edit.moveCursor(QTextCursor.MoveOperation.End)


def add_note(parent: QWidget, session: SessionModel) -> None:
    """Ask for a note to this moment, or to the end of an opened session."""
    moment = "this moment of the timeline" if session.live else "the end of the session"
    message_boxes.ask(parent, "Add note", f"Note to {moment}", "", session.add_note)


def save_preset(parent: QWidget, configuration: ConfigurationModel, settings: Settings) -> None:
    """Ask for a name and save the configuration under it."""
    edited = configuration.edited
    assert edited is not None

    def save_under(name: str) -> None:
        settings.save_preset(name, edited)

    message_boxes.ask(
        parent, "Save configuration", "Name of the configuration", edited.title, save_under
    )
