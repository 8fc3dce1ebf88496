"""The rows of the build form that choose a model of one's own: its file, and the contract."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QSignalBlocker
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QVBoxLayout, QWidget

from sessions.model import BUILD_FUNCTION, split_source
from sessions.plain_text import wrapped
from workbench.protocol import Catalogue
from workbench.ui.dialogs import runner_files
from workbench.ui.panels import _widgets

CONTRACT = "build() returns (module, example tensor) or (module, make_inputs, loss)."
CONTRACT_TIP = (
    "The example is the input of forward: a tensor or a tuple of arguments, with the batch as "
    "first dimension. make_inputs(batch) draws inputs; loss(output, *inputs) is only needed for "
    "training. Help, Your own model has more."
)


class OwnModelRow(QWidget):
    """The file's path with a Browse button, above the requirements of the file."""

    def __init__(self, chosen: Callable[[str], None]) -> None:
        super().__init__()
        self._chosen = chosen
        self._catalogue: Catalogue | None = None
        self.path = QLineEdit()
        self.path.setObjectName("own-model-path")
        self.path.setPlaceholderText("FILE.py, or drop one here")
        self.path.setAccessibleName("File of your own model")
        self.path.editingFinished.connect(lambda: self._choose_file(self.path.text().strip()))
        browse = _widgets.button("Browse …")
        browse.setObjectName("own-model-browse")
        browse.clicked.connect(self._browse)
        row = _widgets.tight(QHBoxLayout(), 6)
        row.addWidget(self.path, 1)
        row.addWidget(browse)
        layout = _widgets.tight(QVBoxLayout(self), 4)
        layout.addLayout(row)
        contract = _widgets.note(CONTRACT)
        contract.setToolTip(wrapped(CONTRACT_TIP))
        layout.addWidget(contract)

    def show_source(self, source: str, catalogue: Catalogue) -> None:
        """Show the file of a configuration."""
        self._catalogue = catalogue
        with QSignalBlocker(self.path):
            self.path.setText(source)
        self.path.setToolTip(source)
        self.path.setCursorPosition(len(source))

    def _browse(self) -> None:
        title = "Open a model: a file whose build() returns it"
        self._choose_file(runner_files.existing(self._catalogue, self, title, "Python (*.py)"))

    def _choose_file(self, source: str) -> None:
        if source and source != self.path.toolTip():
            self._chosen(source)


def file_title(source: str) -> str:
    """Return a file's name instead of its path, with the function unless it is ``build``."""
    path, function = split_source(source)
    name = Path(path).name
    return name if function == BUILD_FUNCTION else f"{name}:{function}"
