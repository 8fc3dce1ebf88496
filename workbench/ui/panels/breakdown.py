"""Where the time and the memory of a step go: modules, kernels, classes, roles, two arms."""

from __future__ import annotations

from PySide6.QtCore import QPointF, Qt
from PySide6.QtWidgets import (
    QHBoxLayout,
    QPushButton,
    QSplitter,
    QStackedWidget,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from sessions.model import Study
from sessions.studies import breakdown, breakdown_tables
from workbench.plots import PLOTS, Run
from workbench.plots.breakdown import Icicle, told
from workbench.ui.controllers.breakdowns import Breakdowns
from workbench.ui.dialogs import runner_files
from workbench.ui.menus.option_picker import CalmComboBox
from workbench.ui.panels import _widgets
from workbench.ui.panels._chart import Chart
from workbench.ui.panels._table_view import TableView
from workbench.ui.panels._throttle import Soon
from workbench.ui.panels.empty import Empty
from workbench.ui.process.thread_pool import Tasks
from workbench.ui.state.comparison import ComparisonModel
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel

HINT = "Point at a module for its numbers; click to look into it, double-click for the whole step."
NOTHING = "nothing"
TRACE_TIP = "A Chrome trace, which ui.perfetto.dev opens"


class BreakdownPanel(QWidget):
    """One profile of the session that is shown, the newest unless another is chosen."""

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        compared: ComparisonModel,
        breakdowns: Breakdowns,
        theme: ThemeModel,
        tasks: Tasks,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._run = session, run
        self._configuration, self._breakdowns = configuration, breakdowns
        self._theme = theme
        self._shown: Study | None = None
        self._count = 0
        self._others: list[Study] = []  # what ``against`` offers after its first entry
        self.icicle, self.roles, self.course = (
            Chart(PLOTS[name], theme.current, tasks) for name in ("breakdown", "memory_roles",
                                                         "memory_course")
        )  # fmt: skip
        self.icicle.setMinimumSize(240, 140)
        self.icicle.pointed.connect(self._point)
        self.icicle.clicked.connect(self._zoom)
        self.course.cursorMoved.connect(self.course.set_cursor)
        self.headline = _widgets.title()
        self.remarks = _widgets.note()
        self.readout = _widgets.note(HINT)
        self.progress = _widgets.note()
        self.start = QPushButton("Profile these steps")
        self.start.clicked.connect(lambda: breakdowns.profile())
        self.traced = QPushButton("Profile and export a trace …")
        self.traced.clicked.connect(self._export)
        self.which, self.against = CalmComboBox(), CalmComboBox()
        self.which.setToolTip("The profile that is shown")
        self.which.activated.connect(self._choose)
        self.against.setToolTip("Another profile, aligned by module, or by class if compiled")
        self.against.activated.connect(self._show_difference)
        for box in (self.which, self.against):
            box.setMinimumContentsLength(16)
        self.kernels, self.kinds, self.modules, self.difference, self.roles_apart, self.waiting = (
            TableView() for _ in range(6)
        )
        self.achieved = TableView()
        self.aligned = _widgets.note()
        self._pages = QStackedWidget()
        self.empty = Empty(
            theme,
            "breakdown",
            "No profile yet",
            "Choose Profile these steps (Shift+F9): some steps of the configuration run under the "
            "profiler, and this panel shows which module, which kernel and which role takes how "
            "much time and memory.",
        )
        self.first = self.empty.offer("Profile these steps", lambda: breakdowns.profile())
        self._pages.addWidget(self.empty)
        self._pages.addWidget(self._make_body())
        layout = _widgets.tight(QVBoxLayout(self), 0)
        layout.addWidget(self._pages)
        self._soon = Soon(self._show, self)
        for changed in (
            session.studiesChanged,
            run.stateChanged,
            compared.changed,
            configuration.editedChanged,
            configuration.availabilityChanged,
        ):
            changed.connect(self._soon.ask)
        session.sessionChanged.connect(self._show)
        theme.changed.connect(self._draw)
        self._draw()

    def _make_body(self) -> QWidget:
        bar, choice = (_widgets.tight(QHBoxLayout(), 8) for _ in range(2))
        for button in (self.start, self.traced):
            bar.addWidget(button)
        bar.addWidget(self.progress, 1)
        for text, box in (("Profile", self.which), ("Against", self.against)):
            choice.addWidget(_widgets.muted(text))
            choice.addWidget(box, 1)
        left = QWidget()
        column = _widgets.tight(QVBoxLayout(left), 0)
        column.addWidget(self.icicle, 1)
        column.addLayout(_widgets.inset(self.readout, 4, 4))
        self.tabs = QTabWidget()
        self.tabs.setDocumentMode(True)
        apart = QSplitter(Qt.Orientation.Vertical)
        upper = QWidget()
        over = _widgets.tight(QVBoxLayout(upper), 0)
        over.addLayout(_widgets.inset(self.aligned, 4, 4))
        over.addWidget(self.difference, 1)
        apart.addWidget(upper)
        apart.addWidget(self.roles_apart)
        apart.setSizes([300, 200])
        self._apart = apart
        pages = {
            "Kernels": self.kernels,
            "Roof": self.achieved,
            "Classes": self.kinds,
            "Modules": self.modules,
            "Memory": self.roles,
            "Course": self.course,
            "Waiting": self.waiting,
            "Difference": apart,
        }
        for title, page in pages.items():
            self.tabs.addTab(page, title)
        body = _widgets.surface()
        whole = _widgets.tight(QVBoxLayout(body), 0)
        whole.addLayout(_widgets.head(self.headline, self.remarks, bar, choice))
        parts = ((left, 5), (self.tabs, 4))
        whole.addWidget(_widgets.split(Qt.Orientation.Horizontal, *parts), 1)
        return body

    def choose(self, number: int) -> None:
        """Show the profile of this number, from 1 on."""
        self._show_study(number)

    def _choose(self, place: int) -> None:
        self.choose(self.which.itemData(place))

    def _export(self) -> None:
        pattern = "Chrome trace (*.json.gz *.json)"
        file = runner_files.new(
            self._configuration.catalogue, self, "Chrome trace", "trace.json.gz", pattern
        )
        if file:
            self._breakdowns.profile(file)

    def _draw(self) -> None:
        for chart in (self.icicle, self.roles, self.course):
            chart.set_theme(self._theme.current)
        self._shown = None
        self._show()

    def _show(self) -> None:
        why_not = self._breakdowns.why_not()
        for button in (self.start, self.traced, self.first):
            _widgets.allow(button, why_not, TRACE_TIP if button is self.traced else "")
        profiling = (
            self._run.active and self._run.running is not None and self._run.progress is not None
        )
        self.progress.setText(why_not or (self._run.text if profiling else ""))
        studies = breakdown.profiles(self._session.shown)
        self._pages.setCurrentIndex(1 if studies else 0)
        if not studies:
            self._shown, self._count = None, 0
            return
        # A profile that has gained rows is another object, and the newest.
        if len(studies) == self._count and any(one is self._shown for one in studies):
            assert self._shown is not None
            self._fill_against(self._shown)
        else:
            self._show_study(len(studies))

    def _show_study(self, number: int) -> None:
        studies = breakdown.profiles(self._session.shown)
        study = self._shown = studies[number - 1]
        self._count = len(studies)
        self.which.clear()
        for place in range(len(studies), 0, -1):
            self.which.addItem(f"{place}: {studies[place - 1].title}", place)
        self.which.setCurrentIndex(len(studies) - number)
        first, *rest = breakdown.words(study) or [study.title]
        self.headline.setText(first)
        self.remarks.setText(" ".join(rest))
        self.remarks.setVisible(bool(rest))
        self.readout.setText(HINT)
        run = Run(self._session.shown)
        for chart in (self.icicle, self.roles, self.course):
            chart.options["profile"] = str(number)
            chart.canvas.follow_x = True
            chart.show_runs([run])
        self.kernels.show_table(breakdown_tables.kernels_table(study))
        for row, name in enumerate(list(breakdown.by(study, "name"))[: self.kernels.rowCount()]):
            item = self.kernels.item(row, 0)
            assert item is not None
            item.setToolTip(name)
        self.kinds.show_table(breakdown_tables.kinds_table(study))
        self.modules.show_table(breakdown_tables.modules_table(study))
        self.waiting.show_table(breakdown_tables.gaps_table(study))
        self.achieved.show_table(breakdown_tables.achieved_table(study))
        known = bool(breakdown.achieved(study))
        self.tabs.setTabVisible(self.tabs.indexOf(self.achieved), known)
        self.tabs.setTabVisible(self.tabs.indexOf(self.waiting), "gaps" in study.tables)
        self._fill_against(study)

    def _fill_against(self, study: Study) -> None:
        chosen = self._other()
        found = self._breakdowns.others(study)
        self._others = [other for _, other in found]
        self.against.clear()
        self.against.addItems([NOTHING, *(title for title, _ in found)])
        kept = next((n for n, other in enumerate(self._others, 1) if other is chosen), 0)
        self.against.setCurrentIndex(kept)
        self.against.setEnabled(bool(found))
        self._show_difference()

    def _other(self) -> Study | None:
        place = self.against.currentIndex()
        return self._others[place - 1] if 0 < place <= len(self._others) else None

    def _show_difference(self) -> None:
        other = self._other()
        place = self.tabs.indexOf(self._apart)
        self.tabs.setTabVisible(place, other is not None)
        if other is not None and self._shown is not None:
            sides = (other, self._shown)
            why_not = breakdown.not_by_module(*sides)
            self.aligned.setText(why_not)
            self.aligned.setVisible(bool(why_not))
            self.difference.show_table(breakdown_tables.difference_table(*sides))
            self.roles_apart.show_table(breakdown_tables.memory_difference_table(*sides))

    def _layer(self) -> Icicle | None:
        layers = self.icicle.canvas.layers
        return next((layer for layer in layers if isinstance(layer, Icicle)), None)

    def _point(self, place: QPointF | None) -> None:
        layer = self._layer()
        if layer is None:
            return
        cell = layer.at(place.x(), place.y()) if place is not None else None
        layer.hover(cell)
        self.readout.setText(told(cell, layer.whole_us) if cell else HINT)

    def _zoom(self, place: QPointF) -> None:
        layer = self._layer()
        cell = layer.at(place.x(), place.y()) if layer is not None else None
        if cell is not None:
            self.icicle.set_x_range(cell.start_us, cell.stop_us)
