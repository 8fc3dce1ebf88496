"""The window: panels with menus, toolbar and status bar around them; it restores its geometry."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QEvent, QSize, Qt
from PySide6.QtGui import QCloseEvent, QDragEnterEvent, QDropEvent
from PySide6.QtWidgets import (
    QHBoxLayout,
    QSizePolicy,
    QToolBar,
    QToolButton,
    QWidget,
)

from sessions.plain_text import one_line
from workbench.theming import fonts
from workbench.ui import accessible_names
from workbench.ui.controllers.appearance import Appearance
from workbench.ui.dialogs import information
from workbench.ui.docks import fit
from workbench.ui.menus import menu_bar, palette_entries, tab_order
from workbench.ui.menus.action_set import ActionSet
from workbench.ui.menus.palette import CommandPalette
from workbench.ui.notices import Notices
from workbench.ui.panel_window import PanelWindow
from workbench.ui.panels import _widgets
from workbench.ui.panels.lazy_panel import LazyPanel
from workbench.ui.panels.start_page import StartPage
from workbench.ui.process.gc_timer import GcTimer
from workbench.ui.settings import Settings
from workbench.ui.state import config_edit
from workbench.ui.status import StatusBar
from workbench.ui.workspace import Workspace

SIZE = (1440, 900)
_LONGEST_TITLE = 200  # characters


class MainWindow(PanelWindow):
    """The complete window; its models and controllers are in ``workspace``."""

    def __init__(self, workspace: Workspace, settings: Settings, appearance: Appearance) -> None:
        super().__init__(workspace, settings, appearance)
        self.setAcceptDrops(True)
        self.lazy_panel("live").made.connect(self._fill_start_page)
        self.actions_ = ActionSet(self)
        self.actions_.fill_menus()
        menu_bar.add_dynamic(self, self.actions_)
        self._title = _widgets.OneLine()
        self._make_toolbar()
        self.status = StatusBar(
            workspace.session,
            workspace.run,
            workspace.configuration,
            workspace.run_control,
            workspace.theme,
        )
        self.setStatusBar(self.status)
        self.palette_ = CommandPalette(self)
        for dock in self.dock_area.docks.values():
            panel = dock.widget()
            if isinstance(panel, LazyPanel):
                panel.made.connect(accessible_names.name_controls)
        accessible_names.name_controls(self)
        self.gc_timer = GcTimer(self)
        self.notices = Notices(
            workspace.session,
            workspace.run,
            workspace.configuration,
            workspace.tasks,
            self.failures,
            self,
            self.actions_["run"].icon(),
        )
        self.paletteWanted.connect(self.show_palette)
        self.preferencesWanted.connect(self.show_preferences)
        self.shortcutsWanted.connect(lambda: information.shortcuts(self, self.actions_.menus))
        self.tourWanted.connect(self.start_tour)
        workspace.session.sessionChanged.connect(self._show_title)
        workspace.session.openingChanged.connect(self._show_title)
        workspace.run.stateChanged.connect(self._show_title)
        self._activated = False
        self._show_title()
        self._restore()

    def focusNextPrevChild(self, forward: bool) -> bool:
        """Move the keyboard focus through toolbar, banners and panels as they are laid out.

        Qt also asks for it where the focused widget was disabled or hidden: no other button takes
        the focus then, because a person who presses Space means the one that is gone. The panel
        takes it, or else the window.
        """
        focused = self.focusWidget()
        if focused is not None and not (focused.isEnabled() and focused.isVisible()):
            dock = self.dock_area.dock_around(focused)
            (self if dock is None or dock.isHidden() else dock.widget()).setFocus()
            return True
        panels = self.dock_area.in_reading_order()
        return tab_order.step([self.toolbar, self.failures, *panels, self.status], forward)

    def show_palette(self) -> None:
        """Open the command palette."""
        submenus = palette_entries.list_submenus(self, self.actions_)
        self.palette_.ask(lambda: [*palette_entries.list_entries(self, self.actions_), *submenus])

    def show_preferences(self, field: str = "") -> None:
        """Open the preferences, at the field of a title if there is one."""
        from workbench.ui.dialogs.preferences import Preferences

        workspace = self.workspace
        preferences = Preferences(
            self.settings,
            self.appearance,
            workspace.verdicts,
            workspace.runs,
            self.actions_,
            self,
        )
        preferences.open()
        if field:
            preferences.show_field(field)

    def changeEvent(self, event: QEvent) -> None:
        """Fit the screen at the first activation: the window manager has added its frame by then.

        Qt gives the keyboard focus to Run, and to the next button as soon as a run disables Run:
        the window itself takes it instead.
        """
        super().changeEvent(event)
        first = event.type() == QEvent.Type.ActivationChange and not self._activated
        if first and self.isActiveWindow():
            self._activated = True
            if isinstance(self.focusWidget(), QToolButton):
                self.setFocus()
            if self.size() == self._restored_size and not self.isFullScreen():
                fit(self)

    def closeEvent(self, event: QCloseEvent) -> None:
        """Save the layout and end the runner, after a question about unsaved work."""
        if event.spontaneous() and not self.may_close():
            event.ignore()
            return
        self.settings.save_layout("geometry", self.saveGeometry())
        self.settings.save_layout("docks", self.dock_area.save_layout())
        self.hide()
        self.status.close_timer()
        self.workspace.close()
        self.gc_timer.stop()  # not earlier: now no other thread runs Python's collection
        super().closeEvent(event)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        """Take session files, journals and Python files."""
        if menu_bar.dropped(event.mimeData()):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        """Open dropped files: show or compare sessions, choose a Python file as the model."""
        event.acceptProposedAction()
        session = self.workspace.session
        occupied = bool(session.shown.segments or session.path or session.opening)
        for path in menu_bar.dropped(event.mimeData()):
            if path.suffix.lower() == menu_bar.MODEL_SUFFIX:
                self._choose_model(path)
                continue
            if occupied:
                self.workspace.compared.open(path)
            else:
                self.open_path(path)
            occupied = True

    def _choose_model(self, path: Path) -> None:
        """Choose the model of a file, or show why it cannot be opened."""
        action = self.actions_["open-model"]
        configuration = self.workspace.configuration
        if action.isEnabled() and configuration.catalogue and configuration.edited:
            model = config_edit.with_own_model(
                configuration.catalogue, configuration.edited, str(path)
            )
            configuration.edit(model)
        else:
            self.failures.show_banner("warning", f"{path.name} was not opened.", action.toolTip())

    def start_tour(self) -> None:
        """Explain the window in five callouts; a tour in progress ends."""
        from workbench.ui.tour import Tour

        for tour in self.findChildren(Tour):
            tour.end()
        self.settings.tour_shown = True
        targets: dict[str, QWidget] = dict(self.dock_area.docks)
        for name in ("run", "verdict"):
            targets[f"{name}-button"] = self.toolbar.widgetForAction(self.actions_[name])
        Tour(self, targets)

    def _fill_start_page(self, panel: QWidget) -> None:
        page = panel.findChild(StartPage)
        if page is not None:
            page.offer_more(self.start_tour, self.settings.recent, self.open_path)

    def _make_toolbar(self) -> None:
        self.toolbar = toolbar = QToolBar("Toolbar")
        toolbar.setObjectName("toolbar")
        toolbar.setMovable(False)
        self.actions_.fill_toolbar(toolbar)
        middle = QWidget()
        middle.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        row = _widgets.tight(QHBoxLayout(middle))
        self._title.setFont(fonts.heading())
        row.addStretch(1)
        row.addWidget(self._title)
        row.addStretch(1)
        toolbar.addWidget(middle)
        palette_button = QToolButton()
        palette_button.setDefaultAction(self.actions_["palette"])
        toolbar.addWidget(palette_button)
        for button in toolbar.findChildren(QToolButton):
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)  # otherwise Tab does not reach it
        self.addToolBar(toolbar)

    def _show_title(self) -> None:
        session = self.workspace.session.shown
        origin = "" if self.workspace.session.live else "  (opened file)"
        opening = self.workspace.session.opening
        text = f"{session.title}{origin}" if opening is None else f"Opening {opening.name} …"
        self._title.say(text)
        run = self.workspace.run
        title = one_line(session.title, _LONGEST_TITLE)
        if run.active:
            configuration = run.running.title if run.running is not None else ""
            suffix = f" {configuration}" if configuration not in ("", session.title) else ""
            title = f"{title} - {run.state}{suffix}"
        self.setWindowTitle(f"{title} - GPU optimization workbench")

    def _restore(self) -> None:
        room = self.screen().availableGeometry().size()
        self.resize(room.boundedTo(QSize(*SIZE)))
        geometry, docks = self.settings.layout("geometry"), self.settings.layout("docks")
        if geometry is not None:
            self.restoreGeometry(geometry)
        self._restored_size = self.size()
        if docks is not None and self.dock_area.restore_layout(docks):
            self.dock_area.fit_floating()
        else:
            self.dock_area.proportion()
