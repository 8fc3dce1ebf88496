"""Dialogs for a file on the runner's host: a file dialog, or a path if it is another host."""

from __future__ import annotations

from PySide6.QtWidgets import QFileDialog, QInputDialog, QWidget

from workbench.client import runner_command
from workbench.protocol import Catalogue


def existing(catalogue: Catalogue | None, parent: QWidget, title: str, pattern: str = "") -> str:
    """Ask for a file that the runner reads; return an empty text if none was chosen."""
    if runner_command.is_custom():
        return _path(catalogue, parent, title, "")
    name, _ = QFileDialog.getOpenFileName(parent, title, "", pattern)
    return name


def new(catalogue: Catalogue | None, parent: QWidget, title: str, name: str, pattern: str) -> str:
    """Ask for a file that the runner writes; return an empty text if none was chosen."""
    if runner_command.is_custom():
        return _path(catalogue, parent, title, name)
    chosen, _ = QFileDialog.getSaveFileName(parent, title, name, pattern)
    return chosen


def _path(catalogue: Catalogue | None, parent: QWidget, title: str, name: str) -> str:
    host_suffix = runner_command.host_suffix({} if catalogue is None else catalogue.environment)
    text, accepted = QInputDialog.getText(parent, title, f"Path{host_suffix}:", text=name)
    return text.strip() if accepted else ""
