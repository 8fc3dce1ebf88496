"""Preferences: type, units, folders, how verdicts are measured, and the keys of all actions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import (
    QComboBox,
    QDialog,
    QDialogButtonBox,
    QFileDialog,
    QFormLayout,
    QHBoxLayout,
    QHeaderView,
    QKeySequenceEdit,
    QLineEdit,
    QPushButton,
    QTableWidget,
    QTableWidgetItem,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from workbench import protocol
from workbench.ui.controllers.appearance import CHOICES
from workbench.ui.dialogs import message_boxes
from workbench.ui.menus.actions import ACTIONS
from workbench.ui.panels import _widgets
from workbench.ui.panels._editors import CalmDoubleSpinBox
from workbench.ui.settings import LARGEST_REGION, LONGEST_BUDGET_S

if TYPE_CHECKING:
    from workbench.ui.window import MainWindow

_SIZE = (560, 480)
_FONT_POINTS = (6.0, 24.0)
_UNITS = {"Binary (GiB = 1024³ bytes)": False, "Decimal (GB = 1000³ bytes)": True}


class Preferences(QDialog):
    """Changes settings at once when it is accepted."""

    def __init__(self, window: MainWindow) -> None:
        super().__init__(window)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle("Preferences")
        self._window = window
        self._keys: dict[str, QKeySequenceEdit] = {}
        tabs = QTabWidget()
        tabs.setDocumentMode(True)
        tabs.setAccessibleName("Pages of the preferences")
        tabs.addTab(self._make_general(), "General")
        tabs.addTab(self._make_verdicts(), "Verdicts")
        tabs.addTab(self._make_shortcuts(), "Shortcuts")
        self.problem = _widgets.note(tone="warning")
        self.problem.hide()
        kinds = QDialogButtonBox.StandardButton
        buttons = QDialogButtonBox(kinds.Ok | kinds.Cancel | kinds.RestoreDefaults)
        buttons.accepted.connect(self._accept)
        buttons.rejected.connect(self.reject)
        buttons.button(kinds.RestoreDefaults).clicked.connect(self._restore_defaults)
        self._ok = buttons.button(kinds.Ok)
        layout = _widgets.tight(QVBoxLayout(self), 8, 16)
        layout.addWidget(tabs, 1)
        layout.addWidget(self.problem)
        layout.addWidget(buttons)
        self.resize(*_SIZE)
        self._check_keys()

    def _make_general(self) -> QWidget:
        settings = self._window.settings
        self.font_size = _number(_FONT_POINTS, self._window.appearance.font_points, " pt", 1)
        self.units = QComboBox()
        self.units.addItems(list(_UNITS))
        self.units.setCurrentIndex(list(_UNITS.values()).index(settings.decimal_units))
        self.folder = QLineEdit(str(settings.folder or message_boxes.folder()))
        browse = QPushButton("Browse …")
        browse.clicked.connect(self._browse)
        row = _widgets.tight(QHBoxLayout(), 6)
        row.addWidget(self.folder, 1)
        row.addWidget(browse)
        self.theme = QComboBox()
        for name in CHOICES:
            self.theme.addItem(name.capitalize(), name)
        self.theme.setCurrentIndex(CHOICES.index(self._window.appearance.choice))
        return _page(
            ("Font size", self.font_size),
            ("Theme", self.theme),
            ("Memory units", self.units),
            ("Default folder", self.folder, row),
        )

    def _make_verdicts(self) -> QWidget:
        workspace = self._window.workspace
        verdicts = workspace.verdicts
        self.budget = _number((1.0, LONGEST_BUDGET_S), verdicts.budget_s, " s", 0)
        self.region = _number((0.1, 100 * LARGEST_REGION), 100 * verdicts.region, " %", 2)
        self.region.setToolTip("Two arms within this difference of step time are the SAME")
        most = 100 * protocol.MOST_PAIRING_SHARE
        self.share = _number((0.0, most), 100 * workspace.runs.pairing_share, " %", 1)
        self.share.setToolTip("Part of a run's time for blocks of its baseline; 0 switches it off")
        return _page(
            ("Budget", self.budget),
            ("Same within", self.region),
            ("Background pairing", self.share),
        )

    def _make_shortcuts(self) -> QWidget:
        table = QTableWidget(len(ACTIONS), 2)
        table.setAccessibleName("Shortcuts")
        table.setHorizontalHeaderLabels(["Action", "Keys"])
        table.verticalHeader().hide()
        table.horizontalHeader().setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        table.setSelectionMode(QTableWidget.SelectionMode.NoSelection)
        for row, action in enumerate(ACTIONS):
            title = f"{action.menu}: {action.text.removesuffix(' …')}"
            item = QTableWidgetItem(title)
            item.setFlags(Qt.ItemFlag.ItemIsEnabled)
            table.setItem(row, 0, item)
            edit = QKeySequenceEdit(self._window.actions_[action.id].shortcut())
            edit.setMaximumSequenceLength(1)
            edit.setClearButtonEnabled(True)
            edit.setAccessibleName(f"Keys of {title}")
            edit.keySequenceChanged.connect(self._check_keys)
            self._keys[action.id] = edit
            table.setCellWidget(row, 1, edit)
        table.setColumnWidth(1, 180)
        return table

    def shortcuts(self) -> dict[str, str]:
        """Return the keys of every action, by its id."""
        portable = QKeySequence.SequenceFormat.PortableText
        return {name: edit.keySequence().toString(portable) for name, edit in self._keys.items()}

    def _check_keys(self) -> None:
        """Refuse keys that two actions have: Qt would trigger neither."""
        counts = Counter(filter(None, self.shortcuts().values()))
        doubled = sorted(keys for keys, count in counts.items() if count > 1)
        self.problem.setText(f"Two actions have the keys {', '.join(doubled)}.")
        self.problem.setVisible(bool(doubled))
        self._ok.setEnabled(not doubled)

    def _browse(self) -> None:
        folder = QFileDialog.getExistingDirectory(self, "Default folder", self.folder.text())
        if folder:
            self.folder.setText(folder)

    def _restore_defaults(self) -> None:
        """Show what a fresh window has; accepting takes it."""
        for action in ACTIONS:
            self._keys[action.id].setKeySequence(QKeySequence(action.shortcut))
        self.font_size.setValue(self._window.appearance.system_points)
        self.units.setCurrentIndex(0)
        self.theme.setCurrentIndex(CHOICES.index("system"))
        self.budget.setValue(20.0)
        self.region.setValue(1.0)
        self.share.setValue(100 * protocol.PAIRING_SHARE)

    def _accept(self) -> None:
        window, workspace = self._window, self._window.workspace
        if self.folder.text() != message_boxes.folder():
            window.settings.folder = Path(self.folder.text())
            message_boxes.use_folder(window.settings.folder)
        window.appearance.choose_units(_UNITS[self.units.currentText()])
        window.appearance.choose_font(self.font_size.value())
        window.set_theme(self.theme.currentData())
        workspace.verdicts.set_defaults(self.budget.value(), self.region.value() / 100)
        workspace.runs.set_pairing_share(self.share.value() / 100)
        window.actions_.set_shortcuts(self.shortcuts())
        self.accept()


def _number(
    limits: tuple[float, float], value: float, unit: str, decimals: int
) -> CalmDoubleSpinBox:
    box = CalmDoubleSpinBox()
    box.setDecimals(decimals)
    box.setRange(*limits)
    box.setSuffix(unit)
    box.setValue(value)
    return box


def _page(*rows: tuple[str, QWidget] | tuple[str, QWidget, QHBoxLayout]) -> QWidget:
    """Return a form; a row's optional third part is the layout that contains its second."""
    page = QWidget()
    form = QFormLayout(page)
    for title, widget, *company in rows:
        widget.setAccessibleName(title)
        widget.setObjectName(f"preference-{title.lower().replace(' ', '-')}")
        form.addRow(title, company[0] if company else widget)
    return page


def open_preferences(window: MainWindow) -> None:
    """Open the preferences."""
    Preferences(window).open()


def save_layout(window: MainWindow) -> None:
    """Ask for a name and keep the layout of the panels under it."""

    def keep(name: str) -> None:
        window.settings.save_named_layout(name, window.desk.saveState())

    message_boxes.ask(window, "Save layout", "Name of the layout", "", keep)
