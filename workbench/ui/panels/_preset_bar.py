"""The head of the toggles: the presets' button, auto-verdict, and what a preset left out."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtWidgets import QCheckBox, QHBoxLayout, QMenu, QToolButton, QVBoxLayout, QWidget

from workbench.theming.icons import icon
from workbench.ui.menus import preset_menu
from workbench.ui.panels import _widgets
from workbench.ui.panels._bar import Bar, Line
from workbench.ui.state import AppState


class PresetBar(QWidget):
    """One line of controls; below it, until it is dismissed, what came of the last preset."""

    def __init__(self, state: AppState, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state = state
        self.setProperty("panel", True)
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.button = QToolButton()
        self.button.setText("Presets ▾")
        self.button.setToolTip("Settle all toggles for a purpose, or as you saved them")
        self.button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.menu = QMenu(self)
        self.menu.aboutToShow.connect(self._fill)
        self.button.setMenu(self.menu)
        self.automatic = QCheckBox("Auto-verdict")
        self.automatic.setToolTip(
            "Judge every change of a toggle in a run against the configuration before it, then go "
            "on with the new one"
        )
        self.automatic.clicked.connect(state.offers.set_automatic)
        self.told = Bar(state.presets.dismiss)
        row = _widgets.tight(QHBoxLayout(), 8)
        row.setContentsMargins(12, 6, 12, 2)
        row.addWidget(self.button)
        row.addStretch(1)
        row.addWidget(self.automatic)
        layout = _widgets.tight(QVBoxLayout(self), 2)
        layout.addLayout(row)
        layout.addWidget(self.told)
        for changed in (state.presets.changed, state.themeChanged, state.comparisonsChanged):
            changed.connect(self._refresh)
        self._refresh()

    def _fill(self) -> None:
        preset_menu.fill(self.menu, self._state, self.window())

    def _refresh(self) -> None:
        theme, told = self._state.theme, self._state.presets.told
        self.button.setIcon(icon("preset", theme))
        with QSignalBlocker(self.automatic):
            self.automatic.setChecked(self._state.offers.automatic)
        if told is None:
            self.told.leave()
            return
        lines: list[Line] = [(told.text, "preset", "accent")]
        lines += [(text, "locked", "muted") for text in told.left_out]
        self.told.say("info", lines, [], theme)
