"""The few dialogs: files, one line of text, and what this machine has."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QStandardPaths, Qt
from PySide6.QtGui import QFont, QGuiApplication, QKeySequence, QTextCursor
from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QFileDialog,
    QInputDialog,
    QLabel,
    QMessageBox,
    QPlainTextEdit,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from sessions.plain_text import one_line
from workbench.theming import fonts
from workbench.titles import Titles
from workbench.ui.dialogs import runner_files
from workbench.ui.panels import _widgets
from workbench.ui.panels._plot_keys import PLOT_KEYS
from workbench.ui.state import config_edit, session_files
from workbench.ui.state.configuration import ConfigurationModel

if TYPE_CHECKING:
    from workbench.ui.window import MainWindow

_KEYS = 16  # letters of the column of shortcuts
_PLOT_KEYS = 24
_folder: Path | None = None  # that a person chose


def open_session(window: MainWindow) -> None:
    """Ask for a file and show its session."""
    name, _ = QFileDialog.getOpenFileName(window, "Open a session", folder(), session_files.FILTER)
    if name:
        window.open_path(Path(name))


def open_trace(window: MainWindow) -> None:
    """Ask for a trace or report of another profiler and show it as a session with a profile."""
    kinds = session_files.TRACE_FILTER
    name, _ = QFileDialog.getOpenFileName(window, "Open a trace", folder(), kinds)
    if name:
        window.open_path(Path(name))


def open_model(window: MainWindow) -> None:
    """Ask for a Python file and choose the model that it builds."""
    configuration = window.workspace.configuration
    catalogue, edited = configuration.catalogue, configuration.edited
    if catalogue is None or edited is None:
        return
    title = "Open a model: a file whose build() returns it"
    name = runner_files.existing(catalogue, window, title, "Python (*.py)")
    if name:
        configuration.edit(config_edit.with_own_model(catalogue, edited, name))


def compare(window: MainWindow) -> None:
    """Ask for files and put their sessions beside the one that is shown."""
    names, _ = QFileDialog.getOpenFileNames(window, "Compare with", folder(), session_files.FILTER)
    for name in names:
        window.workspace.compared.open(Path(name))


def save(window: MainWindow, then: Callable[[], None] | None = None) -> None:
    """Write the session to its file; ask for one where it has none. ``then``: once it is saved."""
    path = window.workspace.session.path
    if path is None or not session_files.is_session(path):
        save_as(window, then)
    else:
        window.save_path(path, then)


def save_as(window: MainWindow, then: Callable[[], None] | None = None) -> None:
    """Ask for a file and write the session there."""
    suggestion = suggested(window.workspace.session.shown.title, session_files.SUFFIX)
    path = file_to_write(window, "Save the session", suggestion, session_files.WRITTEN)
    if path is not None:
        window.save_path(path, then)


def ask_before_closing(window: MainWindow, close: Callable[[], None]) -> None:
    """Ask about work that is not saved; ``close`` is called unless a person stays."""
    session = window.workspace.session
    has_journal = session.journal is not None
    box = QMessageBox(window)
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    box.setWindowTitle("Not saved")
    box.setText(f"{one_line(session.recorder.session.title, 80)!r} is not saved.")
    if has_journal:
        box.setInformativeText("Its journal keeps it: the next start offers to recover it.")
    buttons = QMessageBox.StandardButton
    box.setStandardButtons(buttons.Save | buttons.Discard | buttons.Cancel)
    box.button(buttons.Discard).setText(
        "Close, keep the journal" if has_journal else "Close without it"
    )
    box.setDefaultButton(buttons.Save)

    def finish(result: int) -> None:
        if result == buttons.Discard:
            close()
        elif result == buttons.Save:
            session.show_live()
            save(window, close)

    box.finished.connect(finish)
    box.open()


def file_to_write(
    parent: QWidget, title: str, suggestion: str, kinds: Mapping[str, str]
) -> Path | None:
    """Ask for a file to write; ``kinds`` are Qt's filters by ending.

    A name without one of the endings gets that of the filter which was picked. Qt asks before the
    file of the name is replaced, and cannot before that of the whole name is.
    """
    name, picked = QFileDialog.getSaveFileName(parent, title, suggestion, ";;".join(kinds.values()))
    path = Path(name)
    if not name or path.suffix.lower() in kinds:
        return path if name else None
    ending = next((one for one, kind in kinds.items() if kind == picked), next(iter(kinds)))
    path = path.with_name(f"{path.name}{ending}")
    if path.exists():
        text = f"{path.name} is there already. Replace it?"
        yes, no = QMessageBox.StandardButton.Yes, QMessageBox.StandardButton.No
        if QMessageBox.question(parent, title, text, yes | no, no) != yes:
            return None
    return path


def suggested(title: str, suffix: str) -> str:
    """A path for a new file of that title."""
    slug = re.sub(r"[^\w.-]+", "-", title).strip("-").lower() or "session"
    return str(Path(folder()) / f"{slug}{suffix}")


def report(window: MainWindow) -> None:
    """Put a report together from the sessions that are shown."""
    from workbench.ui.dialogs.report_dialog import ReportDialog

    ReportDialog(window).open()


def rename(window: MainWindow) -> None:
    """Ask for the session's title."""
    session = window.workspace.session
    ask(window, "Rename session", "Title", session.shown.title, session.rename)


def notes(window: MainWindow) -> None:
    """Ask for the session's notes."""
    session = window.workspace.session

    def keep(text: str) -> None:
        session.describe(session.shown.title, text)

    dialog = ask(window, "Session notes", "Notes", session.shown.notes, keep, blank=True)
    dialog.setOption(QInputDialog.InputDialogOption.UsePlainTextEditForTextInput)
    dialog.resize(480, 280)
    edit = dialog.findChild(QPlainTextEdit)
    assert edit is not None
    edit.setFocus()  # and not OK
    edit.setTabChangesFocus(True)
    edit.moveCursor(QTextCursor.MoveOperation.End)


def add_note(window: MainWindow) -> None:
    """Ask for a note to this moment."""
    ask(
        window,
        "Add note",
        "Note to this moment of the timeline",
        "",
        window.workspace.session.add_note,
    )


def save_preset(window: MainWindow) -> None:
    """Ask for a name and keep the configuration under it."""
    configuration = window.workspace.configuration.edited
    assert configuration is not None
    suggestion = configuration.title

    def keep(name: str) -> None:
        window.settings.save_preset(name, configuration)

    ask(window, "Save configuration", "Name of the configuration", suggestion, keep)


def doctor(window: MainWindow) -> None:
    """Show what the runner found on this machine."""
    _report(
        window,
        "Doctor",
        doctor_text(window.workspace.configuration, window.workspace.session.titles),
    )


def log(window: MainWindow) -> None:
    """Show what the libraries printed in the runner."""
    _report(
        window, "Runner log", "\n".join(window.workspace.run.log) or "Nothing has been printed."
    )


def shortcuts(window: MainWindow) -> None:
    """Show what each key does, menu by menu, and in a plot."""
    from workbench.ui.panels._moments import MOMENT_KEYS  # which asks with the dialogs of here

    lines: list[str] = []
    for name, menu in window.actions_.menus.items():
        keyed = [action for action in menu.actions() if not action.shortcut().isEmpty()]
        if keyed:
            lines += ["", name] if lines else [name]
        for action in keyed:
            keys = action.shortcut().toString(QKeySequence.SequenceFormat.NativeText)
            lines.append(f"  {keys:<{_KEYS}}{action.text().removesuffix(' …')}")
    lines += ["", "In a plot, once it is clicked or Tab has come to its menu"]
    lines += [f"  {', '.join(key.keys):<{_PLOT_KEYS}}{key.text}" for key in PLOT_KEYS]
    lines += [f"  {key.key:<{_PLOT_KEYS}}{key.text}" for key in MOMENT_KEYS]
    lines += [f"  {'Shift and drag':<{_PLOT_KEYS}}Mark a range and measure it"]
    _report(window, "Keyboard shortcuts", "\n".join(lines))


def about(window: MainWindow) -> None:
    """Show the version and the licence."""
    from importlib import metadata  # brings the e-mail library, and few ask for the version

    try:
        version = metadata.version("gpu-optimization-workbench")
    except metadata.PackageNotFoundError:
        version = "not installed"
    _report(
        window,
        "About",
        f"GPU optimization workbench {version}\n\n"
        "Toggle GPU optimizations while the model runs, and see whether they really helped.\n\n"
        "Icons: Phosphor. Colours of series: after Okabe and Ito.\n"
        "The licence is in the file LICENSE.",
        QFont(),
        (480, 250),
    )


def doctor_text(configuration: ConfigurationModel, titles: Titles) -> str:
    """Device, environment, operators and blocked options, as lines of text."""
    catalogue, availability = configuration.catalogue, configuration.availability
    if catalogue is None:
        return "The runner has not told yet what this machine has."
    lines = [catalogue.device_title, ""]
    lines += [f"{name}: {value}" for name, value in catalogue.environment.items()]
    lines += ["", "Operators"]
    lines += [f"  {name}: {text}" for name, text in catalogue.operators.items()]
    blocked = availability.blocked if availability is not None else {}
    if blocked:
        lines += ["", "Blocked options"]
    for toggle, options in blocked.items():
        lines += [f"  {titles.choice(toggle, name)}: {why.said}" for name, why in options.items()]
    return "\n".join(lines)


def ask(
    window: QWidget,
    title: str,
    label: str,
    text: str,
    accept: Callable[[str], None],
    *,
    blank: bool = False,
) -> QInputDialog:
    """Ask for one line of text; ``accept`` is called with it unless it is empty, or ``blank``."""
    dialog = QInputDialog(window)
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.setWindowTitle(title)
    dialog.setLabelText(label)
    dialog.setTextValue(text)
    dialog.resize(420, dialog.sizeHint().height())
    dialog.textValueSelected.connect(
        lambda value: accept(value.strip()) if blank or value.strip() else None
    )
    dialog.open()
    return dialog


def _report(
    window: MainWindow,
    title: str,
    text: str,
    face: QFont | None = None,
    size: tuple[int, int] = (640, 420),
) -> None:
    dialog = QDialog(window)
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.setWindowTitle(title)
    dialog.resize(*size)
    box = QPlainTextEdit(text)
    box.setReadOnly(True)
    box.setFont(face or fonts.fixed())
    buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
    copy = QPushButton("Copy")
    buttons.addButton(copy, QDialogButtonBox.ButtonRole.ActionRole)
    copy.clicked.connect(lambda: QGuiApplication.clipboard().setText(text))
    buttons.rejected.connect(dialog.reject)
    heading = QLabel(title)
    heading.setFont(fonts.title())
    layout = _widgets.tight(QVBoxLayout(dialog), 8, 16)
    layout.addWidget(heading)
    layout.addWidget(box, 1)
    layout.addWidget(buttons)
    dialog.open()


def use_folder(path: Path | None) -> None:
    """Begin dialogs for files in this folder; None is the system's for documents."""
    global _folder
    _folder = path


def folder() -> str:
    """Return the folder in which dialogs for files begin."""
    if _folder is not None and _folder.is_dir():
        return str(_folder)
    return QStandardPaths.writableLocation(QStandardPaths.StandardLocation.DocumentsLocation)
