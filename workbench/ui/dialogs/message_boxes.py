"""Small dialogs that take no model: one line of text, a file to write, a text to read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from PySide6.QtCore import QStandardPaths, Qt
from PySide6.QtGui import QFont, QGuiApplication
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

from workbench.theming import fonts
from workbench.ui.panels import _widgets

_LONGEST_NAME = 120  # bytes of a suggested file name
_folder: Path | None = None  # chosen in the preferences


def file_to_write(
    parent: QWidget, title: str, suggestion: str, kinds: Mapping[str, str]
) -> Path | None:
    """Ask for a file to write; ``kinds`` are Qt's filters by ending.

    A name without one of the endings gets the ending of the chosen filter. Qt asks before a file of
    the typed name is replaced; this asks before a file of the extended name is.
    """
    name, picked = QFileDialog.getSaveFileName(parent, title, suggestion, ";;".join(kinds.values()))
    path = Path(name)
    if not name or path.suffix.lower() in kinds:
        return path if name else None
    ending = next((suffix for suffix, kind in kinds.items() if kind == picked), next(iter(kinds)))
    path = path.with_name(f"{path.name}{ending}")
    if path.exists():
        text = f"{path.name} exists already. Replace it?"
        yes, no = QMessageBox.StandardButton.Yes, QMessageBox.StandardButton.No
        if QMessageBox.question(parent, title, text, yes | no, no) != yes:
            return None
    return path


def suggested(title: str, suffix: str) -> str:
    """Return a path for a new file of that title."""
    slug = re.sub(r"[^\w.-]+", "-", title).lower()
    # A title may have 1,000 letters of several bytes; file systems allow names of 255 bytes.
    slug = slug.encode()[:_LONGEST_NAME].decode(errors="ignore").strip("-") or "session"
    return str(Path(folder()) / f"{slug}{suffix}")


def ask(
    parent: QWidget,
    title: str,
    label: str,
    text: str,
    accept: Callable[[str], None],
    *,
    blank: bool = False,
) -> QInputDialog:
    """Ask for one line of text and call ``accept`` with it; with an empty one only if ``blank``."""
    dialog = QInputDialog(parent)
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


def show_text(
    parent: QWidget,
    title: str,
    text: str,
    face: QFont | None = None,
    size: tuple[int, int] = (640, 420),
) -> None:
    """Show a text that can be copied."""
    dialog = QDialog(parent)
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
    # Not of Path, which raises if a name is too long or a folder may not be entered.
    if _folder is not None and os.path.isdir(_folder):  # noqa: PTH112
        return str(_folder)
    return QStandardPaths.writableLocation(QStandardPaths.StandardLocation.DocumentsLocation)
