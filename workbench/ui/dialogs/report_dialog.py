"""The dialog that composes a report: its sections, their order, title, notes and colours."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QSize, Qt, QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import (
    QAbstractItemView,
    QCheckBox,
    QComboBox,
    QDialog,
    QDialogButtonBox,
    QFormLayout,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QMessageBox,
    QPlainTextEdit,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from workbench.plot_export import ExportError
from workbench.plots import Run
from workbench.report import SECTIONS, Section, _page
from workbench.theming import fonts
from workbench.theming.theme import DARK, LIGHT, PRINT
from workbench.titles import distinct
from workbench.ui.dialogs import message_boxes
from workbench.ui.panels import _widgets
from workbench.ui.process.thread_pool import Tasks
from workbench.ui.state import session_files
from workbench.ui.state.comparison import ComparisonModel
from workbench.ui.state.session import SessionModel

_NAME = Qt.ItemDataRole.UserRole
_THEMES = {"Print": PRINT, "Light": LIGHT, "Dark": DARK}
_SIZE = QSize(560, 640)
_NOTES_LINES, _NOTES_PX = 3, 24  # visible lines, and the pixels around them
_SPACING_PX = 2


class ReportDialog(QDialog):
    """Dialog that writes a page about the shown session and the sessions compared with it."""

    def __init__(
        self,
        session: SessionModel,
        compared: ComparisonModel,
        tasks: Tasks,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._tasks = tasks
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle("Report")
        self.resize(_SIZE)
        sessions = [session.shown, *compared.sessions]
        self.runs = [
            Run(session_files.snapshot(shown), label, color, titled=session.titled)
            for color, (shown, label) in enumerate(zip(sessions, distinct(sessions), strict=True))
        ]
        self.title = QLineEdit(session.shown.title)
        self.notes = QPlainTextEdit()
        self.notes.setTabChangesFocus(True)
        self.notes.setPlaceholderText("Notes for the reader, below the title")
        fonts.follow(self.notes, self._fix_notes)
        self.notes.setTabChangesFocus(True)
        self.theme = QComboBox()
        self.theme.addItems(list(_THEMES))
        self.opens = QCheckBox("Open the page after writing it")
        self.opens.setChecked(True)
        self.sections = self._make_sections()
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Cancel)
        self.write = QPushButton("Write …")
        self.write.setDefault(True)
        self.write.clicked.connect(self._choose_file_and_write)
        buttons.addButton(self.write, QDialogButtonBox.ButtonRole.AcceptRole)
        buttons.rejected.connect(self.reject)
        self._arrange(buttons)
        self.sections.itemChanged.connect(self._renew)
        self._renew()

    def _fix_notes(self) -> None:
        line_px = self.notes.fontMetrics().lineSpacing()
        self.notes.setFixedHeight(_NOTES_LINES * line_px + _NOTES_PX)

    def chosen(self) -> list[str]:
        """Return the names of the ticked sections, in their order."""
        items = [self.sections.item(row) for row in range(self.sections.count())]
        ticked = [item for item in items if item.checkState() == Qt.CheckState.Checked]
        return [str(item.data(_NAME)) for item in ticked]

    def write_to(self, path: Path) -> None:
        """Make the page and write it; raise ``ExportError`` if that fails."""
        theme = _THEMES[self.theme.currentText()]
        notes = self.notes.toPlainText()
        content = _page.page(self.runs, self.title.text().strip(), notes, self.chosen(), theme)
        _page.write(path, content)

    def move_section(self, by: int) -> None:
        """Move the selected section down by so many rows."""
        row = self.sections.currentRow()
        if row >= 0 and 0 <= row + by < self.sections.count():
            self.sections.insertItem(row + by, self.sections.takeItem(row))
            self.sections.setCurrentRow(row + by)

    def _make_sections(self) -> QListWidget:
        box = QListWidget()
        box.setDragDropMode(QAbstractItemView.DragDropMode.InternalMove)
        box.setAccessibleName("Sections of the report")
        box.setSpacing(_SPACING_PX)
        able = {section.name for section in _page.offered(self.runs)}
        for section in sorted(SECTIONS.values(), key=lambda section: section.name not in able):
            box.addItem(self._make_item(section))
        return box

    def _make_item(self, section: Section) -> QListWidgetItem:
        why_not = section.why_not(self.runs)
        item = QListWidgetItem(f"{section.title} ({why_not})" if why_not else section.title)
        item.setData(_NAME, section.name)
        item.setToolTip(why_not or section.help.strip())
        flags = Qt.ItemFlag.ItemIsSelectable | Qt.ItemFlag.ItemIsDragEnabled
        if why_not:
            item.setFlags(Qt.ItemFlag.NoItemFlags)
        else:
            item.setFlags(flags | Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsUserCheckable)
            item.setCheckState(Qt.CheckState.Checked)
        return item

    def _arrange(self, buttons: QDialogButtonBox) -> None:
        heading = QLabel("Report")
        heading.setFont(fonts.title())
        names = ", ".join(run.title for run in self.runs)
        about = _widgets.note(f"One self-contained HTML page about {names}.")
        form = QFormLayout()
        form.addRow("Title", self.title)
        form.addRow("Notes", self.notes)
        form.addRow("Colours", self.theme)
        layout = _widgets.tight(QVBoxLayout(self), 8, 16)
        layout.addWidget(heading)
        layout.addWidget(about)
        layout.addLayout(form)
        row = _widgets.tight(QHBoxLayout())
        row.addWidget(_widgets.heading("Sections, in the order of the page"), 1)
        for text, by in (("Up", -1), ("Down", 1)):
            button = _widgets.compact(text)
            button.clicked.connect(lambda _=False, by=by: self.move_section(by))
            row.addWidget(button)
        layout.addLayout(row)
        layout.addWidget(self.sections, 1)
        layout.addWidget(self.opens)
        layout.addWidget(buttons)

    def _renew(self) -> None:
        self.write.setEnabled(bool(self.chosen()))

    def _choose_file_and_write(self) -> None:
        suggestion = message_boxes.suggested(self.title.text(), _page.SUFFIX)
        kinds = {_page.SUFFIX: f"Web page (*{_page.SUFFIX})"}
        path = message_boxes.file_to_write(self, "Write the report", suggestion, kinds)
        if path is None:
            return
        self.setCursor(Qt.CursorShape.WaitCursor)
        try:
            self.write_to(path)
        except ExportError as error:
            QMessageBox.warning(self, "Report", str(error))
            return
        finally:
            self.unsetCursor()
        self._tasks.wrote.emit(path)
        if self.opens.isChecked():
            QDesktopServices.openUrl(QUrl.fromLocalFile(str(path)))
        self.accept()
