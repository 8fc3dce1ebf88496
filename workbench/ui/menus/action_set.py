"""The table of actions as QActions, in menus and in the toolbar."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QMenu, QToolBar, QToolButton

from workbench.theming.icons import icon
from workbench.ui.menus.actions import ACTIONS, MENUS, TOOLBAR, Action
from workbench.ui.panel_window import PanelWindow


class ActionSet(QObject):
    """QActions by the ids of the table; ``refresh`` brings them up to date."""

    def __init__(self, window: PanelWindow) -> None:
        super().__init__(window)
        self._window = window
        self.menus: dict[str, QMenu] = {}
        self._actions: dict[str, QAction] = {}
        for action in ACTIONS:
            self._actions[action.id] = self._make(action)
        workspace = window.workspace
        for changed in (
            workspace.run.stateChanged,
            workspace.session.savedChanged,
            workspace.configuration.editedChanged,
            workspace.configuration.availabilityChanged,
            workspace.session.segmentsChanged,
            workspace.session.sessionChanged,
            workspace.session.openingChanged,
            workspace.compared.changed,
            workspace.session.comparisonsChanged,
            workspace.session.followChanged,
            workspace.configuration.undo.indexChanged,
        ):
            changed.connect(self.refresh)
        workspace.theme.changed.connect(self._draw)
        self._draw()
        self.refresh()

    def __getitem__(self, name: str) -> QAction:
        return self._actions[name]

    def fill_menus(self) -> None:
        """Fill the window's menu bar."""
        for name in MENUS:
            menu = self._window.menuBar().addMenu(f"&{name}")
            menu.setToolTipsVisible(True)
            self.menus[name] = menu
            group = 0
            for action in ACTIONS:
                if action.menu == name:
                    if action.group != group:
                        menu.addSeparator()
                        group = action.group
                    menu.addAction(self[action.id])

    def fill_toolbar(self, toolbar: QToolBar) -> None:
        """Fill the toolbar; Run is highlighted and shows its name."""
        for name in TOOLBAR:
            if not name:
                toolbar.addSeparator()
                continue
            toolbar.addAction(self[name])
        run = toolbar.widgetForAction(self["run"])
        assert isinstance(run, QToolButton)
        run.setProperty("primary", True)
        run.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)

    def refresh(self) -> None:
        """Enable the actions that are possible now; the tool tip of the others says why not."""
        workspace = self._window.workspace
        for action in ACTIONS:
            qt_action = self[action.id]
            why_not = action.why_not(workspace)
            text = action.now(workspace) or action.text
            qt_action.setEnabled(not why_not)
            qt_action.setText(text)
            shown = qt_action.shortcut().toString(QKeySequence.SequenceFormat.NativeText)
            keys = f"  ({shown})" if shown else ""
            lines = (f"{text.removesuffix(' …')}{keys}", action.tip, why_not)
            qt_action.setToolTip("\n".join(line for line in lines if line))
            if action.checked is not None:
                qt_action.setChecked(action.checked(workspace))
        paused = workspace.run.state == "paused"
        self["pause"].setIcon(icon("resume" if paused else "pause", workspace.theme.current))

    def _make(self, action: Action) -> QAction:
        qt_action = QAction(action.text, self._window)
        qt_action.setObjectName(action.id)
        chosen = self._window.settings.shortcuts.get(action.id, action.shortcut)
        qt_action.setShortcut(QKeySequence(chosen))
        qt_action.setCheckable(action.checked is not None)
        # A menu draws the icon over the check mark, and Run's icon has the colour of its button.
        qt_action.setIconVisibleInMenu(action.checked is None and action.id != "run")
        qt_action.triggered.connect(lambda: action.handler(self._window))
        self._window.addAction(qt_action)
        return qt_action

    def set_shortcuts(self, shortcuts: Mapping[str, str]) -> None:
        """Set the keys of the actions, by id, and remember those that are not the defaults."""
        for action in ACTIONS:
            self[action.id].setShortcut(QKeySequence(shortcuts[action.id]))
        self._window.settings.shortcuts = {
            action.id: shortcuts[action.id]
            for action in ACTIONS
            if QKeySequence(shortcuts[action.id]) != QKeySequence(action.shortcut)
        }
        self.refresh()

    def _draw(self) -> None:
        theme = self._window.workspace.theme.current
        for action in ACTIONS:
            role = "on_accent" if action.id == "run" else "text"
            self[action.id].setIcon(icon(action.icon, theme, role))
        self.refresh()
