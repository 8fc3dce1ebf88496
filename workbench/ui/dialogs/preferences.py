"""Preferences: font size, units, folders, defaults of verdicts, and the keys of all actions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

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
from workbench.theming import fonts
from workbench.ui.controllers.appearance import CHOICES, Appearance
from workbench.ui.controllers.runs import Runs
from workbench.ui.controllers.verdicts import Verdicts
from workbench.ui.dialogs import message_boxes
from workbench.ui.menus.action_set import ActionSet
from workbench.ui.menus.actions import ACTIONS
from workbench.ui.panels import _widgets
from workbench.ui.panels._editors import NoWheelDoubleSpinBox
from workbench.ui.settings import FONT_POINTS, LARGEST_REGION, LONGEST_BUDGET_S, Settings

_SIZE = (560, 480)
_FIELD_PX = 4  # more for a row, which holds a field
_UNITS = {"Binary (GiB = 1024³ bytes)": False, "Decimal (GB = 1000³ bytes)": True}


class Preferences(QDialog):
    """Dialog that changes all settings at once when it is accepted."""

    def __init__(
        self,
        settings: Settings,
        appearance: Appearance,
        verdicts: Verdicts,
        runs: Runs,
        actions: ActionSet,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle("Preferences")
        self._settings, self._appearance = settings, appearance
        self._verdicts, self._runs, self._actions = verdicts, runs, actions
        self._keys: dict[str, QKeySequenceEdit] = {}
        self._tabs = tabs = QTabWidget()
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
        self._ok_button = buttons.button(kinds.Ok)
        layout = _widgets.tight(QVBoxLayout(self), 8, 16)
        layout.addWidget(tabs, 1)
        layout.addWidget(self.problem)
        layout.addWidget(buttons)
        self.resize(*_SIZE)
        self._check_keys()

    def show_field(self, title: str) -> None:
        """Show the page of a field, and give the field the keyboard."""
        field = page = self.findChild(QWidget, _object_name(title))
        assert isinstance(field, QWidget)
        while page is not None and self._tabs.indexOf(page) < 0:
            page = page.parentWidget()
        if page is not None:
            self._tabs.setCurrentWidget(page)
        field.setFocus(Qt.FocusReason.ShortcutFocusReason)

    def _make_general(self) -> QWidget:
        self.font_size = _number(FONT_POINTS, self._appearance.font_points, " pt", 1)
        self.units = QComboBox()
        self.units.addItems(list(_UNITS))
        self.units.setCurrentIndex(list(_UNITS.values()).index(self._settings.decimal_units))
        self.folder = QLineEdit(str(self._settings.folder or message_boxes.folder()))
        browse = QPushButton("Browse …")
        browse.clicked.connect(self._browse)
        row = _widgets.tight(QHBoxLayout(), 6)
        row.addWidget(self.folder, 1)
        row.addWidget(browse)
        self.theme = QComboBox()
        for name in CHOICES:
            self.theme.addItem(name.capitalize(), name)
        self.theme.setCurrentIndex(CHOICES.index(self._appearance.choice))
        return _page(
            ("Font size", self.font_size),
            ("Theme", self.theme),
            ("Memory units", self.units),
            ("Default folder", self.folder, row),
        )

    def _make_verdicts(self) -> QWidget:
        verdicts = self._verdicts
        self.budget = _number((1.0, LONGEST_BUDGET_S), verdicts.budget_s, " s", 0)
        self.region = _number((0.1, 100 * LARGEST_REGION), 100 * verdicts.region, " %", 2)
        self.region.setToolTip("A smaller difference of step times counts as the SAME")
        most = 100 * protocol.MOST_PAIRING_SHARE
        self.share = _number((0.0, most), 100 * self._runs.pairing_share, " %", 1)
        self.share.setToolTip("Share of a run's time for measuring its baseline again; 0: never")
        return _page(
            ("Budget", self.budget),
            ("Same within", self.region),
            ("Background pairing", self.share),
        )

    def _make_shortcuts(self) -> QWidget:
        table = QTableWidget(len(ACTIONS), 2)
        table.setAccessibleName("Shortcuts")
        table.setObjectName(_object_name("Shortcuts"))
        table.setHorizontalHeaderLabels(["Action", "Keys"])
        table.verticalHeader().hide()
        table.horizontalHeader().setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        table.setSelectionMode(QTableWidget.SelectionMode.NoSelection)
        for row, action in enumerate(ACTIONS):
            title = f"{action.menu}: {action.text.removesuffix(' …')}"
            item = QTableWidgetItem(title)
            item.setFlags(Qt.ItemFlag.ItemIsEnabled)
            table.setItem(row, 0, item)
            edit = QKeySequenceEdit(self._actions[action.id].shortcut())
            edit.setMaximumSequenceLength(1)
            edit.setClearButtonEnabled(True)
            edit.setAccessibleName(f"Keys of {title}")
            edit.keySequenceChanged.connect(self._check_keys)
            self._keys[action.id] = edit
            table.setCellWidget(row, 1, edit)
        fonts.fix_rows(table, _FIELD_PX)
        table.setColumnWidth(1, fonts.in_type(180, table.font()))
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
        self._ok_button.setEnabled(not doubled)

    def _browse(self) -> None:
        folder = QFileDialog.getExistingDirectory(self, "Default folder", self.folder.text())
        if folder:
            self.folder.setText(folder)

    def _restore_defaults(self) -> None:
        """Show the defaults; accepting the dialog applies them."""
        for action in ACTIONS:
            self._keys[action.id].setKeySequence(QKeySequence(action.shortcut))
        self.font_size.setValue(self._appearance.system_points)
        self.units.setCurrentIndex(0)
        self.theme.setCurrentIndex(CHOICES.index("system"))
        self.budget.setValue(20.0)
        self.region.setValue(1.0)
        self.share.setValue(100 * protocol.PAIRING_SHARE)

    def _accept(self) -> None:
        if self.folder.text() != message_boxes.folder():
            self._settings.folder = Path(self.folder.text())
            message_boxes.use_folder(self._settings.folder)
        self._appearance.choose_units(_UNITS[self.units.currentText()])
        self._appearance.choose_font(self.font_size.value())
        self._appearance.choose(self.theme.currentData())
        self._verdicts.set_defaults(self.budget.value(), self.region.value() / 100)
        self._runs.set_pairing_share(self.share.value() / 100)
        self._actions.set_shortcuts(self.shortcuts())
        self.accept()


def _number(
    limits: tuple[float, float], value: float, unit: str, decimals: int
) -> NoWheelDoubleSpinBox:
    box = NoWheelDoubleSpinBox()
    box.setDecimals(decimals)
    box.setRange(*limits)
    box.setSuffix(unit)
    box.setValue(value)
    return box


def _object_name(title: str) -> str:
    return f"preference-{title.lower().replace(' ', '-')}"


def _page(*rows: tuple[str, QWidget] | tuple[str, QWidget, QHBoxLayout]) -> QWidget:
    """Return a form; the third item of a row, if any, is the layout that contains its widget."""
    page = QWidget()
    form = QFormLayout(page)
    for title, widget, *layout in rows:
        widget.setAccessibleName(title)
        widget.setObjectName(_object_name(title))
        form.addRow(title, layout[0] if layout else widget)
    return page
