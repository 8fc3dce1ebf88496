"""The head of the toggles: the presets' button, auto-verdict, and what a preset left out."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtWidgets import QCheckBox, QHBoxLayout, QMenu, QToolButton, QVBoxLayout, QWidget

from workbench.theming.icons import icon
from workbench.ui.controllers.presets import Presets
from workbench.ui.controllers.verdict_prompt import Offers
from workbench.ui.menus import preset_menu
from workbench.ui.panels import _widgets
from workbench.ui.panels._bar import Bar, Line
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel


class PresetBar(QWidget):
    """One line of controls; below it, until it is dismissed, what came of the last preset."""

    def __init__(
        self,
        session: SessionModel,
        offers: Offers,
        presets: Presets,
        theme: ThemeModel,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._offers, self._presets, self._theme = offers, presets, theme
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
        self.automatic.clicked.connect(offers.set_automatic)
        self.told = Bar(presets.dismiss)
        row = _widgets.tight(QHBoxLayout(), 8)
        row.setContentsMargins(12, 6, 12, 2)
        row.addWidget(self.button)
        row.addStretch(1)
        row.addWidget(self.automatic)
        layout = _widgets.tight(QVBoxLayout(self), 2)
        layout.addLayout(row)
        layout.addWidget(self.told)
        for changed in (presets.changed, theme.changed, session.comparisonsChanged):
            changed.connect(self._refresh)
        self._refresh()

    def _fill(self) -> None:
        preset_menu.fill(self.menu, self._presets, self.window())

    def _refresh(self) -> None:
        theme, told = self._theme.current, self._presets.told
        self.button.setIcon(icon("preset", theme))
        with QSignalBlocker(self.automatic):
            self.automatic.setChecked(self._offers.automatic)
        if told is None:
            self.told.leave()
            return
        lines: list[Line] = [(told.text, "preset", "accent")]
        lines += [(text, "locked", "muted") for text in told.left_out]
        self.told.say("info", lines, [], theme)
