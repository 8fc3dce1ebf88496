"""The window's panels, and the commands that act on them: below menus, toolbar and status bar."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QMainWindow, QVBoxLayout, QWidget

from workbench.ui import panel_list
from workbench.ui.controllers.appearance import Appearance
from workbench.ui.dialogs import message_boxes, session_dialogs
from workbench.ui.docks import DockArea
from workbench.ui.panels import _widgets
from workbench.ui.panels._chart import Chart
from workbench.ui.panels.failure import FailurePanel
from workbench.ui.panels.lazy_panel import LazyPanel
from workbench.ui.panels.segments import SegmentsPanel
from workbench.ui.panels.toggles import TogglesPanel
from workbench.ui.settings import Settings
from workbench.ui.state import config_edit
from workbench.ui.workspace import Workspace


class PanelWindow(QMainWindow):
    """Base of the main window; an action of a menu needs no more than this."""

    paletteWanted = Signal()
    preferencesWanted = Signal(str)  # the title of the field to show, or ""
    shortcutsWanted = Signal()
    tourWanted = Signal()

    def __init__(self, workspace: Workspace, settings: Settings, appearance: Appearance) -> None:
        super().__init__()
        self.workspace: Workspace = workspace
        self.settings: Settings = settings
        self.appearance: Appearance = appearance
        workspace.keep_in(settings)
        message_boxes.use_folder(settings.folder)
        self.failures = FailurePanel(
            workspace.run, workspace.configuration, workspace.failures, workspace.theme
        )
        self.dock_area: DockArea = DockArea(workspace.theme, panel_list.panels(workspace))
        body = QWidget()
        layout = _widgets.tight(QVBoxLayout(body), 0)
        layout.addWidget(self.failures)
        layout.addWidget(self.dock_area, 1)
        self.setCentralWidget(body)
        appearance.dress(self, body, self.dock_area)
        self._closes = False  # the user has decided about unsaved work
        workspace.session.begun.connect(self.failures.dismiss_failures)
        workspace.session.sessionChanged.connect(self._show_profile)
        workspace.session.eventsWanted.connect(lambda: self.dock_area.bring("events"))
        workspace.compared.changed.connect(self._show_comparison)
        workspace.verdicts.pairChosen.connect(lambda: self.dock_area.bring("verdict"))
        workspace.session.textChanged.connect(self._show_text)
        self._text_shown = False

    def settled(self) -> bool:
        """Return True if everything that arrived is shown."""
        panel = self.dock_area.docks["segments"].widget()
        assert isinstance(panel, SegmentsPanel)
        return panel.current

    @property
    def live(self) -> QWidget:
        """The panel of live plots."""
        return self.lazy_panel("live").panel()

    @property
    def compare(self) -> QWidget:
        """The panel of the comparison."""
        return self.lazy_panel("compare").panel()

    @property
    def verdict(self) -> QWidget:
        """The panel of the verdict."""
        return self.lazy_panel("verdict").panel()

    @property
    def attribution(self) -> QWidget:
        """The panel of the attribution."""
        return self.lazy_panel("attribution").panel()

    @property
    def optimize(self) -> QWidget:
        """The panel of the best configuration."""
        return self.lazy_panel("optimize").panel()

    @property
    def checklist(self) -> QWidget:
        """The panel of the validation checklist."""
        return self.lazy_panel("checklist").panel()

    @property
    def breakdown(self) -> QWidget:
        """The panel of profiles."""
        return self.lazy_panel("breakdown").panel()

    @property
    def sweep(self) -> QWidget:
        """The panel of the sweep."""
        return self.lazy_panel("sweep").panel()

    @property
    def kernels(self) -> QWidget:
        """The panel of timed kernels."""
        return self.lazy_panel("kernels").panel()

    @property
    def claims(self) -> QWidget:
        """The panel of the documents' claims."""
        return self.lazy_panel("claims").panel()

    @property
    def toggles(self) -> TogglesPanel:
        """The panel of the optimizations."""
        panel = self.dock_area.docks["toggles"].widget()
        assert isinstance(panel, TogglesPanel)
        return panel

    def open_path(self, path: Path) -> None:
        """Show the session of a file."""
        self.workspace.session.open(path, partial(self.settings.remember, path))

    def save_path(self, path: Path, then: Callable[[], None] | None = None) -> None:
        """Write the shown session to a file, and call ``then`` once it is saved."""

        def finish() -> None:
            self.settings.remember(path)
            if then is not None:
                then()

        self.workspace.session.save(path, finish)

    def set_theme(self, name: str) -> None:
        """Choose the theme: ``system``, ``dark`` or ``light``."""
        self.appearance.choose(name)

    def choose_preset(self, name: str) -> None:
        """Choose another preset of the family that is being edited."""
        configuration = self.workspace.configuration
        catalogue, edited = configuration.catalogue, configuration.edited
        assert catalogue is not None and edited is not None
        configuration.edit(config_edit.with_preset(catalogue, edited, name))

    def judge(self) -> None:
        """Compare with the configuration before, and show the verdict as it comes."""
        self.enter("verdict")
        self.workspace.verdicts.against_before()

    def judge_longer(self) -> None:
        """Continue the undecided comparison."""
        self.enter("verdict")
        self.workspace.verdicts.measure_more()

    def calibrate(self) -> None:
        """Compare the configuration with itself, and store the difference as the noise floor."""
        self.enter("verdict")
        self.workspace.verdicts.calibrate()

    def attribute(self) -> None:
        """Show the attribution panel, where one is started."""
        self.enter("attribution")

    def search(self) -> None:
        """Show the panel that searches for the best configuration."""
        self.enter("optimize")

    def vary(self) -> None:
        """Show the sweep panel, where one is started."""
        self.enter("sweep")

    def reproduce(self) -> None:
        """Show the claims of the documents, where they are measured."""
        self.enter("claims")

    def validate(self) -> None:
        """Start the validation checklist, and show its progress."""
        self.enter("checklist")
        self.workspace.checklists.check()

    def profile(self) -> None:
        """Profile the configuration, and show where its time and memory go."""
        self.enter("breakdown")
        self.workspace.breakdowns.profile()

    def enter(self, name: str) -> None:
        """Give a panel the keyboard, and bring it to the front of its tabs."""
        if name:
            self.dock_area.enter(name)

    def step_panel(self, by: int) -> None:
        """Give the keyboard to the panel ``by`` positions after the current panel."""
        self.enter(self.dock_area.beside(by))

    def float_panel(self) -> None:
        """Float the panel that has the keyboard, or dock it again; it keeps the keyboard."""
        name = self.dock_area.current()
        if name:
            dock = self.dock_area.docks[name]
            dock.setFloating(not dock.isFloating())
            self.dock_area.enter(name)

    def close_panel(self) -> None:
        """Close the panel that has the keyboard, and give it to the next."""
        name, next_name = self.dock_area.current(), self.dock_area.beside(1)
        if name:
            self.dock_area.docks[name].close()
            self.enter(next_name if next_name != name else "")

    def reset_layout(self) -> None:
        """Put every dock back to its place."""
        self.settings.forget_layout()
        self.dock_area.arrange()

    def restore_layout(self, name: str) -> None:
        """Restore the layout of the panels that was saved under a name."""
        if (state := self.settings.named_layout(name)) is not None:
            self.dock_area.restore_layout(state)
            self.dock_area.fit_floating()

    def export_plot(self) -> None:
        """Write the plot in front to a file: of another panel, or else a live plot."""
        chart = self._chart_in_front()
        (self.live if chart is None else chart).export_plot()

    def copy_plot(self) -> None:
        """Put a picture of the plots in front on the clipboard."""
        chart = self._chart_in_front()
        (self.live if chart is None else chart).copy_image()

    def _chart_in_front(self) -> Chart | None:
        """Return the first plot with data that is seen; None if live plots are, or no plot."""
        charts = [
            chart
            for chart in self.dock_area.findChildren(Chart)
            if chart.reason is None and chart.is_seen()
        ]
        live = self.dock_area.docks["live"]
        return None if any(map(live.isAncestorOf, charts)) else next(iter(charts), None)

    def show_help(self, name: str) -> None:
        """Open a page of the help."""
        from workbench.ui.dialogs.help import HelpDialog

        HelpDialog(name, self).show()

    def quit(self) -> None:
        """Close the window, which ends the application; ask first if work is not saved."""
        if self.may_close():
            self.close()

    def may_close(self) -> bool:
        """Return True if nothing is unsaved or the user has decided; ask otherwise."""
        session = self.workspace.session
        if self._closes or session.saved or not session.recorder.session.segments:
            return True
        session_dialogs.ask_before_closing(self, session, self.save_path, self._close_now)
        return False

    def _close_now(self) -> None:
        self._closes = True
        self.close()

    def lazy_panel(self, name: str) -> LazyPanel:
        """Return the panel that is made when it is first shown."""
        panel = self.dock_area.docks[name].widget()
        assert isinstance(panel, LazyPanel)
        return panel

    def _show_profile(self) -> None:
        session = self.workspace.session.shown
        if session.studies and not session.segments:  # a trace: nothing else has anything to show
            self.dock_area.bring("breakdown")

    def _show_comparison(self) -> None:
        if self.workspace.compared.sessions:
            self.dock_area.bring("compare")

    def _show_text(self) -> None:
        if not self._text_shown:  # shown once: the user may prefer another panel
            self._text_shown = True
            self.dock_area.bring("text")
