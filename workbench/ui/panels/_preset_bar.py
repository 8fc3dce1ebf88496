"""The controls above the toggles: filter, toggle sets, auto-verdict; options left out of a set."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtGui import QAction
from PySide6.QtWidgets import (
    QCheckBox,
    QHBoxLayout,
    QLineEdit,
    QMenu,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from workbench.theming.icons import icon
from workbench.ui.controllers.presets import Presets
from workbench.ui.controllers.verdict_prompt import VerdictPrompt
from workbench.ui.menus import preset_menu
from workbench.ui.panels import _widgets
from workbench.ui.panels._bar import Bar, Line
from workbench.ui.panels._toggle_groups import Filter
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel


class PresetBar(QWidget):
    """Line of controls; below it, until dismissed, the options left out of the last toggle set."""

    filterChanged = Signal(object)  # a Filter
    collapseAll = Signal(bool)

    def __init__(
        self,
        session: SessionModel,
        prompt: VerdictPrompt,
        presets: Presets,
        theme: ThemeModel,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._prompt, self._presets, self._theme = prompt, presets, theme
        self.setProperty("panel", True)
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.filter = QLineEdit()
        self.filter.setObjectName("toggle-filter")
        self.filter.setPlaceholderText("Filter")
        self.filter.setAccessibleName("Filter the toggles by name, group or option")
        self.filter.setClearButtonEnabled(True)
        self.filter.textChanged.connect(self._announce)
        self.show_button = self._menu_button("Show only some of the toggles, or collapse groups")
        self.show_button.setMenu(self._make_show_menu())
        self.button = self._menu_button("Toggle sets: set all toggles for a purpose, or as saved")
        self.button.setText("Sets ▾")
        self.button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.menu = QMenu(self)
        self.menu.aboutToShow.connect(self._fill)
        self.button.setMenu(self.menu)
        self.automatic = QCheckBox("Auto-verdict")
        self.automatic.setToolTip(
            "Compare the configurations before and after every later change of a toggle, then "
            "continue with the changed configuration"
        )
        self.automatic.clicked.connect(prompt.set_automatic)
        self.outcome = Bar(presets.dismiss)
        row = _widgets.tight(QHBoxLayout(), 6)
        row.setContentsMargins(12, 4, 12, 2)
        row.addWidget(self.filter, 1)
        row.addWidget(self.show_button)
        row.addWidget(self.button)
        row.addWidget(self.automatic)
        layout = _widgets.tight(QVBoxLayout(self), 2)
        layout.addLayout(row)
        layout.addWidget(self.outcome)
        for changed in (presets.changed, theme.changed, session.comparisonsChanged):
            changed.connect(self._refresh)
        self._refresh()

    def _menu_button(self, tip: str) -> QToolButton:
        button = QToolButton()
        button.setToolTip(tip)
        button.setAccessibleName(tip)
        button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        return button

    def _make_show_menu(self) -> QMenu:
        menu = QMenu(self)
        self.only_changed = QAction("Only changed", menu, checkable=True)
        self.only_available = QAction("Only available", menu, checkable=True)
        for action in (self.only_changed, self.only_available):
            action.toggled.connect(self._announce)
            menu.addAction(action)
        menu.addSeparator()
        menu.addAction("Collapse all groups", lambda: self.collapseAll.emit(True))
        menu.addAction("Expand all groups", lambda: self.collapseAll.emit(False))
        return menu

    def _announce(self) -> None:
        changed, available = self.only_changed.isChecked(), self.only_available.isChecked()
        self.filterChanged.emit(Filter(self.filter.text().strip(), changed, available))
        self._refresh()

    def _fill(self) -> None:
        preset_menu.fill(self.menu, self._presets, self.window())

    def _refresh(self) -> None:
        theme, outcome = self._theme.current, self._presets.outcome
        self.button.setIcon(icon("preset", theme))
        narrowed = self.only_changed.isChecked() or self.only_available.isChecked()
        self.show_button.setIcon(icon("filter", theme, "accent" if narrowed else "text"))
        with QSignalBlocker(self.automatic):
            self.automatic.setChecked(self._prompt.automatic)
        if outcome is None:
            self.outcome.leave()
            return
        lines: list[Line] = [(outcome.text, "preset", "accent")]
        lines += [(text, "locked", "muted") for text in outcome.left_out]
        self.outcome.say("info", lines, [], theme)
