"""The window: lays out docks, menus, toolbar and status bar, and restores its geometry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QEvent, QSize, Qt
from PySide6.QtGui import QCloseEvent, QDragEnterEvent, QDropEvent
from PySide6.QtWidgets import (
    QHBoxLayout,
    QMainWindow,
    QSizePolicy,
    QToolBar,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from sessions.plain_text import one_line
from workbench.theming import fonts
from workbench.ui import accessible_names, panel_list
from workbench.ui.controllers.appearance import Appearance
from workbench.ui.dialogs import message_boxes
from workbench.ui.docks import Desk, fit
from workbench.ui.menus import menu_bar, tab_order
from workbench.ui.menus.action_set import ActionSet
from workbench.ui.menus.palette import CommandPalette
from workbench.ui.notices import Notices
from workbench.ui.panels import _widgets
from workbench.ui.panels.failure import FailurePanel
from workbench.ui.panels.lazy_panel import Later
from workbench.ui.panels.segments import SegmentsPanel
from workbench.ui.panels.start_page import StartPage
from workbench.ui.panels.toggles import TogglesPanel
from workbench.ui.process.gc_timer import Collector
from workbench.ui.settings import Settings
from workbench.ui.state import config_edit
from workbench.ui.status import StatusBar
from workbench.ui.workspace import Workspace

SIZE = (1440, 900)
_LONGEST_TITLE = 200  # characters


class MainWindow(QMainWindow):
    """Everything that a person sees; what it shows is in ``workspace``."""

    def __init__(self, workspace: Workspace, settings: Settings, appearance: Appearance) -> None:
        super().__init__()
        self.workspace: Workspace = workspace
        self.settings: Settings = settings
        self.appearance: Appearance = appearance
        appearance.dress(self)
        self.setAcceptDrops(True)
        workspace.keep_in(settings)
        message_boxes.use_folder(settings.folder)
        self.failures = FailurePanel(
            workspace.run, workspace.configuration, workspace.failures, workspace.theme
        )
        self.desk: Desk = Desk(workspace.theme, panel_list.panels(workspace))
        body = QWidget()
        layout = _widgets.tight(QVBoxLayout(body), 0)
        layout.addWidget(self.failures)
        layout.addWidget(self.desk, 1)
        self.setCentralWidget(body)
        self._later("live").made.connect(self._fill_start_page)
        self.actions_ = ActionSet(self)
        self.actions_.fill_menus()
        menu_bar.add_dynamic(self)
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
        for dock in self.desk.docks.values():
            panel = dock.widget()
            if isinstance(panel, Later):
                panel.made.connect(accessible_names.name_controls)
        accessible_names.name_controls(self)
        self.collector = Collector(self)
        self.notices = Notices(self)
        self._closes = False  # a person has decided about what is not saved
        workspace.session.sessionChanged.connect(self._show_title)
        workspace.session.sessionChanged.connect(self._show_profile)
        workspace.run.stateChanged.connect(self._show_title)
        workspace.session.eventsWanted.connect(lambda: self.desk.bring("events"))
        workspace.compared.changed.connect(self._show_comparison)
        workspace.verdicts.pairChosen.connect(lambda: self.desk.bring("verdict"))
        workspace.session.textChanged.connect(self._show_text)
        self._text_shown = self._activated = False
        self._show_title()
        self._restore()

    def settled(self) -> bool:
        """Whether it shows all that arrived."""
        panel = self.desk.docks["segments"].widget()
        assert isinstance(panel, SegmentsPanel)
        return panel.current

    @property
    def live(self) -> QWidget:
        """The panel of live plots."""
        return self._later("live").panel()

    @property
    def compare(self) -> QWidget:
        """The panel of the comparison."""
        return self._later("compare").panel()

    @property
    def verdict(self) -> QWidget:
        """The panel of the verdict."""
        return self._later("verdict").panel()

    @property
    def attribution(self) -> QWidget:
        """The panel of the attribution."""
        return self._later("attribution").panel()

    @property
    def optimize(self) -> QWidget:
        """The panel of the best configuration."""
        return self._later("optimize").panel()

    @property
    def checklist(self) -> QWidget:
        """The panel of the validation checklist."""
        return self._later("checklist").panel()

    @property
    def breakdown(self) -> QWidget:
        """The panel of profiles."""
        return self._later("breakdown").panel()

    @property
    def sweep(self) -> QWidget:
        """The panel of the sweep."""
        return self._later("sweep").panel()

    @property
    def kernels(self) -> QWidget:
        """The panel of timed kernels."""
        return self._later("kernels").panel()

    @property
    def claims(self) -> QWidget:
        """The panel of the documents' claims."""
        return self._later("claims").panel()

    @property
    def toggles(self) -> TogglesPanel:
        """The panel of the optimizations."""
        panel = self.desk.docks["toggles"].widget()
        assert isinstance(panel, TogglesPanel)
        return panel

    def focusNextPrevChild(self, forward: bool) -> bool:
        """Move the keyboard focus through toolbar, banners and panels as they are laid out.

        Qt also asks for it where the focused widget was disabled or hidden: no other button takes
        the focus then, because a person who presses Space means the one that is gone.
        """
        focused = self.focusWidget()
        if focused is not None and not (focused.isEnabled() and focused.isVisible()):
            self.setFocus()
            return True
        panels = self.desk.in_reading_order()
        return tab_order.step([self.toolbar, self.failures, *panels, self.status], forward)

    def open_path(self, path: Path) -> None:
        """Show the session of a file."""
        self.workspace.session.open(path)
        self.settings.remember(path)

    def save_path(self, path: Path, then: Callable[[], None] | None = None) -> None:
        """Write the session that is shown to a file; ``then`` is called once it is saved."""
        self.workspace.session.save(path, then)
        self.settings.remember(path)

    def set_theme(self, name: str) -> None:
        """Dark, light or as the system has it."""
        self.appearance.choose(name)

    def choose_preset(self, name: str) -> None:
        """Take another preset of the family."""
        menu_bar.choose_preset(self.workspace.configuration, name)

    def show_palette(self) -> None:
        """Open the command palette."""
        self.palette_.ask(self.actions_.entries())

    def judge(self) -> None:
        """Compare with the configuration before, and show the verdict as it comes."""
        self.desk.bring("verdict")
        self.workspace.verdicts.against_before()

    def judge_longer(self) -> None:
        """Go on with the comparison that is undecided."""
        self.desk.bring("verdict")
        self.workspace.verdicts.measure_more()

    def calibrate(self) -> None:
        """Compare the configuration with itself, and keep what it differs by."""
        self.desk.bring("verdict")
        self.workspace.verdicts.calibrate()

    def attribute(self) -> None:
        """Show what the toggles gave, and where to ask for it."""
        self.desk.bring("attribution")

    def search(self) -> None:
        """Show the best configuration, and where to search for it."""
        self.desk.bring("optimize")

    def vary(self) -> None:
        """Show what sweeps found, and where to ask for one."""
        self.desk.bring("sweep")

    def reproduce(self) -> None:
        """Show what the documents claim, and where to measure it."""
        self.desk.bring("claims")

    def validate(self) -> None:
        """Go through the checklist, and show it as it is done."""
        self.desk.bring("checklist")
        self.workspace.checklists.check()

    def profile(self) -> None:
        """Profile the configuration, and show where its time and memory go."""
        self.desk.bring("breakdown")
        self.workspace.breakdowns.profile()

    def enter(self, name: str) -> None:
        """Give a panel the keyboard, in front of those that it shares its place with."""
        if name:
            self.desk.enter(name)

    def step_panel(self, by: int) -> None:
        """Give the keyboard to the panel ``by`` places after the one that has it."""
        self.enter(self.desk.beside(by))

    def float_panel(self) -> None:
        """Float the panel that has the keyboard, or dock it again; it keeps the keyboard."""
        name = self.desk.current()
        if name:
            dock = self.desk.docks[name]
            dock.setFloating(not dock.isFloating())
            self.desk.enter(name)

    def close_panel(self) -> None:
        """Close the panel that has the keyboard, and give it to the next."""
        name, beside = self.desk.current(), self.desk.beside(1)
        if name:
            self.desk.docks[name].close()
            self.enter(beside if beside != name else "")

    def reset_layout(self) -> None:
        """Put every dock back to its place."""
        self.settings.forget_layout()
        self.desk.arrange()

    def restore_layout(self, name: str) -> None:
        """Lay the panels out as they were saved under a name."""
        if (state := self.settings.named_layout(name)) is not None:
            self.desk.restoreState(state)
            self.desk.fit_floating()

    def export_plot(self) -> None:
        """Write a plot to a file."""
        self.live.export_plot()

    def copy_plot(self) -> None:
        """Put a picture of the plots on the clipboard."""
        self.live.copy_image()

    def quit(self) -> None:
        """Close the window, which ends the application; ask first if work is not saved."""
        if self._may_close():
            self.close()

    def _may_close(self) -> bool:
        """Return True if nothing is unsaved, or a person has decided; ask otherwise."""
        session = self.workspace.session
        if self._closes or session.saved or not session.recorder.session.segments:
            return True
        message_boxes.ask_before_closing(self, self._close_now)
        return False

    def _close_now(self) -> None:
        self._closes = True
        self.close()

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
        if event.spontaneous() and not self._may_close():
            event.ignore()
            return
        self.settings.save_layout("geometry", self.saveGeometry())
        self.settings.save_layout("docks", self.desk.saveState())
        self.hide()
        self.status.close_timer()
        self.workspace.close()
        self.collector.stop()  # only now: no thread is left in which Python could collect
        super().closeEvent(event)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        """Take session files, journals and Python files."""
        if menu_bar.dropped(event.mimeData()):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        """Open the first file, or compare it where a session is open; a Python file is a model."""
        event.acceptProposedAction()
        occupied = bool(
            self.workspace.session.shown.segments or self.workspace.session.path is not None
        )
        for path in menu_bar.dropped(event.mimeData()):
            if path.suffix.lower() == menu_bar.MODEL_SUFFIX:
                self._take_model(path)
                continue
            if occupied:
                self.workspace.compared.open(path)
            else:
                self.open_path(path)
            occupied = True

    def _take_model(self, path: Path) -> None:
        """Choose the model of a file, or say why that cannot be."""
        action = self.actions_["open-model"]
        configuration = self.workspace.configuration
        if action.isEnabled() and configuration.catalogue and configuration.edited:
            model = config_edit.with_own_model(
                configuration.catalogue, configuration.edited, str(path)
            )
            configuration.edit(model)
        else:
            self.failures.show_banner("warning", f"{path.name} was not opened.", action.toolTip())

    def show_help(self, name: str) -> None:
        """Open a page of the help."""
        from workbench.ui.dialogs.help import HelpDialog

        HelpDialog(name, self).show()

    def start_tour(self) -> None:
        """Explain the window in five callouts, in place of a tour in progress."""
        from workbench.ui.tour import Tour

        for tour in self.findChildren(Tour):
            tour.end()
        self.settings.tour_shown = True
        Tour(self)

    def _fill_start_page(self, panel: QWidget) -> None:
        page = panel.findChild(StartPage)
        if page is not None:
            page.offer_more(self.start_tour, self.settings.recent, self.open_path)

    def _later(self, name: str) -> Later:
        panel = self.desk.docks[name].widget()
        assert isinstance(panel, Later)
        return panel

    def _make_toolbar(self) -> None:
        self.toolbar = bar = QToolBar("Toolbar")
        bar.setObjectName("toolbar")
        bar.setMovable(False)
        self.actions_.fill_toolbar(bar)
        middle = QWidget()
        middle.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        row = _widgets.tight(QHBoxLayout(middle))
        self._title.setFont(fonts.heading())
        row.addStretch(1)
        row.addWidget(self._title)
        row.addStretch(1)
        bar.addWidget(middle)
        find = QToolButton()
        find.setDefaultAction(self.actions_["palette"])
        bar.addWidget(find)
        for button in bar.findChildren(QToolButton):
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)  # else Tab never comes there
        self.addToolBar(bar)

    def _show_title(self) -> None:
        session = self.workspace.session.shown
        place = "" if self.workspace.session.live else "  (opened file)"
        self._title.say(f"{session.title}{place}")
        run = self.workspace.run
        title = one_line(session.title, _LONGEST_TITLE)
        if run.active:
            configuration = run.running.title if run.running is not None else ""
            apart = f" {configuration}" if configuration not in ("", session.title) else ""
            title = f"{title} - {run.state}{apart}"
        self.setWindowTitle(f"{title} - GPU optimization workbench")

    def _show_profile(self) -> None:
        session = self.workspace.session.shown
        if session.studies and not session.segments:  # a trace: nothing else has anything to show
            self.desk.bring("breakdown")

    def _show_comparison(self) -> None:
        if self.workspace.compared.sessions:
            self.desk.bring("compare")

    def _show_text(self) -> None:
        if not self._text_shown:  # only once: who goes elsewhere stays there
            self._text_shown = True
            self.desk.bring("text")

    def _restore(self) -> None:
        room = self.screen().availableGeometry().size()
        self.resize(room.boundedTo(QSize(*SIZE)))
        geometry, docks = self.settings.layout("geometry"), self.settings.layout("docks")
        if geometry is not None:
            self.restoreGeometry(geometry)
        self._restored_size = self.size()
        if docks is not None:
            self.desk.restoreState(docks)
            self.desk.fit_floating()
        else:
            self.desk.proportion()
