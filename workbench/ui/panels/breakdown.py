"""The panel of profiles: timeline, modules, kernels, roofline, memory, and what to try next."""

from __future__ import annotations

from PySide6.QtCore import QPointF, Qt
from PySide6.QtWidgets import (
    QHBoxLayout,
    QStackedWidget,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from sessions.model import Study
from sessions.studies import breakdown, breakdown_tables
from workbench.plots import PLOTS, Run
from workbench.plots.breakdown import Icicle, describe_cell
from workbench.ui.controllers.breakdowns import Breakdowns
from workbench.ui.controllers.next_steps import NextSteps
from workbench.ui.dialogs import runner_files
from workbench.ui.menus.option_picker import NoWheelComboBox
from workbench.ui.panels import _widgets
from workbench.ui.panels._chart import Chart
from workbench.ui.panels._kernel_timeline import KernelTimeline
from workbench.ui.panels._next_steps import NextStepsList
from workbench.ui.panels._searched_table import SearchedTable
from workbench.ui.panels._splitter import Splitter
from workbench.ui.panels._table_view import TableView
from workbench.ui.panels._throttle import ThrottledCall
from workbench.ui.panels._wrapped_row import WrappedRow
from workbench.ui.panels.empty import Empty
from workbench.ui.process.thread_pool import Tasks
from workbench.ui.state.comparison import ComparisonModel
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel

CHARTS = ("breakdown", "profile_roofline", "memory_roles", "memory_course")
MOST_KERNELS = 2000  # rows
HINT = "Point at a module for its numbers. Click: look into it. Double-click: the whole step."
_MOST_MODULES = 40  # modules that a kernel's tip names
NOTHING = "nothing"
NO_PROFILE = (
    "No profile yet",
    "Choose Profile these steps (Shift+F9): some steps of the configuration run under the "
    "profiler, and this panel shows how much time and memory each module, kernel and role needs.",
)
TRACE_TIP = "A Chrome trace for ui.perfetto.dev"


class BreakdownPanel(QWidget):
    """Panel of a profile of the shown session: the newest unless another is chosen."""

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        compared: ComparisonModel,
        breakdowns: Breakdowns,
        steps: NextSteps,
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
        self._listed: list[Study] = []  # the shown profile, and what ``against`` offers beside it
        self.icicle, self.roof, self.roles, self.course = (
            Chart(PLOTS[name], theme.current, tasks) for name in CHARTS
        )
        self.timeline = KernelTimeline(theme, tasks)
        self.next_steps = NextStepsList(steps, theme)
        self.icicle.setMinimumSize(240, 140)
        self.icicle.pointed.connect(self._point)
        self.icicle.clicked.connect(self._zoom)
        self.course.cursorMoved.connect(self.course.set_cursor)
        self.headline = _widgets.title()
        self.remarks = _widgets.note()
        self.readout = _widgets.note(HINT)
        self.progress = _widgets.note()
        self.start = _widgets.button("Profile these steps")
        self.start.clicked.connect(lambda: breakdowns.profile())
        self.traced = _widgets.button("Profile and export a trace …")
        self.traced.clicked.connect(self._export)
        self.which, self.against = NoWheelComboBox(), NoWheelComboBox()
        self.which.setToolTip("The shown profile")
        self.which.activated.connect(self._choose)
        self.against.setToolTip("Another profile, aligned by module, or by class if compiled")
        self.against.activated.connect(self._show_difference)
        for box in (self.which, self.against):
            box.setMinimumContentsLength(16)
        self.searched = SearchedTable("Search kernels and modules")
        self.kernels = self.searched.view
        self.achieved, self.kinds, self.modules, self.difference = (TableView() for _ in range(4))
        self.roles_apart, self.waiting = TableView(), TableView()
        self.aligned = _widgets.note()
        self._pages = QStackedWidget()
        self.empty = Empty(theme, "breakdown", *NO_PROFILE)
        self.first = self.empty.offer("Profile these steps", lambda: breakdowns.profile())
        self._pages.addWidget(self.empty)
        self._pages.addWidget(self._make_body())
        layout = _widgets.tight(QVBoxLayout(self), 0)
        layout.addWidget(self._pages)
        self._throttled = ThrottledCall(self._show, self)
        for changed in (
            session.studiesChanged,
            run.stateChanged,
            compared.changed,
            configuration.editedChanged,
            configuration.availabilityChanged,
        ):
            changed.connect(self._throttled.schedule)
        session.sessionChanged.connect(self._show)
        theme.changed.connect(self._draw)
        self._draw()

    def _make_body(self) -> QWidget:
        button_row = _widgets.tight(QHBoxLayout(), 8)
        button_row.addLayout(WrappedRow(self.start, self.traced))
        button_row.addWidget(self.progress, 1)
        self.choice = QWidget()
        choices = (("Profile", self.which), ("Against", self.against))
        pairs = [_widgets.named(text, box) for text, box in choices]
        self.choice.setLayout(WrappedRow(*pairs))
        self.tabs = QTabWidget()
        self.tabs.setDocumentMode(True)
        over = QWidget()
        rows = _widgets.tight(QVBoxLayout(over), 0)
        rows.addLayout(_widgets.inset(self.aligned, 4, 4))
        rows.addWidget(self.difference, 1)
        vertical = Qt.Orientation.Vertical
        pages = {
            "Timeline": self.timeline,
            "Modules": self._make_modules(),
            "Kernels": self.searched,
            "Roofline": Splitter(vertical, (self.roof, 5), (self.achieved, 2)),
            "Classes": self.kinds,
            "Memory": Splitter(vertical, (self.course, 1), (self.roles, 1)),
            "Waiting": self.waiting,
            "Difference": Splitter(vertical, (over, 3), (self.roles_apart, 2)),
        }
        for title, page in pages.items():
            self.tabs.addTab(page, title)
        body = _widgets.surface()
        column = _widgets.tight(QVBoxLayout(body), 0)
        above = (self.headline, self.remarks, self.next_steps, button_row, self.choice)
        column.addLayout(_widgets.head(*above))
        column.addWidget(_widgets.scrolled(self.tabs), 1)
        return body

    def _make_modules(self) -> QWidget:
        left = QWidget()
        column = _widgets.tight(QVBoxLayout(left), 0)
        column.addWidget(self.icicle, 1)
        column.addLayout(_widgets.inset(self.readout, 4, 4))
        return Splitter(Qt.Orientation.Horizontal, (left, 5), (self.modules, 4))

    def choose(self, number: int) -> None:
        """Show the profile of this number, from 1 on."""
        self._show_study(number)

    def _choose(self, index: int) -> None:
        self.choose(self.which.itemData(index))

    def _export(self) -> None:
        pattern = "Chrome trace (*.json.gz *.json)"
        file = runner_files.new(
            self._configuration.catalogue, self, "Chrome trace", "trace.json.gz", pattern
        )
        if file:
            self._breakdowns.profile(file)

    def _charts(self) -> tuple[Chart, ...]:
        return self.icicle, self.roof, self.roles, self.course

    def _draw(self) -> None:
        for chart in (self.timeline.chart, *self._charts()):
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
        self.empty.say(*((why_not, self._run.text) if self._breakdowns.busy else NO_PROFILE))
        if not studies:
            self._shown, self._count = None, 0
            return
        # A profile that has gained rows is another object, and the newest.
        if len(studies) == self._count and any(study is self._shown for study in studies):
            assert self._shown is not None
            self._fill_against(self._shown)
            self.next_steps.show_study(self._shown)
        else:
            self._show_study(len(studies))

    def _show_study(self, number: int) -> None:
        studies = breakdown.profiles(self._session.shown)
        study = self._shown = studies[number - 1]
        self._count = len(studies)
        self.which.clear()
        for index in range(len(studies), 0, -1):
            self.which.addItem(f"{index}: {studies[index - 1].title}", index)
        self.which.setCurrentIndex(len(studies) - number)
        first, *remarks = breakdown.words(study) or [study.title]
        self.headline.setText(first)
        self.remarks.setText(" ".join(remarks))
        self.remarks.setVisible(bool(remarks))
        self.readout.setText(HINT)
        run = Run(self._session.shown)
        for chart in self._charts():
            chart.options["profile"] = str(number)
            chart.canvas.auto_range_x = True
            chart.show_runs([run])
        self.timeline.show_run(run, str(number))
        self.next_steps.show_study(study)
        self.searched.show_table(
            breakdown_tables.kernels_table(study, MOST_KERNELS), _modules_by_kernel(study)
        )
        self.kinds.show_table(breakdown_tables.kinds_table(study))
        self.modules.show_table(breakdown_tables.modules_table(study))
        self.waiting.show_table(breakdown_tables.gaps_table(study))
        self.achieved.show_table(breakdown_tables.achieved_table(study))
        self._show_tab("Timeline", "timeline" in study.tables)
        self._show_tab("Roofline", bool(breakdown.achieved(study)))
        self.roof.setVisible(bool(breakdown.roof_points(study)))
        self._show_tab("Memory", "memory" in study.tables)
        self._show_tab("Waiting", "gaps" in study.tables)
        self._fill_against(study)

    def _fill_against(self, study: Study) -> None:
        chosen = self._other()
        offered = self._breakdowns.comparable(study)
        listed = [study, *(other for _, other in offered)]
        if list(map(id, listed)) == list(map(id, self._listed)):
            return  # the box may be open, and the table scrolled
        self._listed = listed
        self.against.clear()
        self.against.addItems([NOTHING, *(title for title, _ in offered)])
        index = next((n for n, other in enumerate(listed) if n and other is chosen), 0)
        self.against.setCurrentIndex(index)
        self.choice.setVisible(bool(offered))
        self._show_difference()

    def _other(self) -> Study | None:
        index = self.against.currentIndex()
        return self._listed[index] if 0 < index < len(self._listed) else None

    def _show_difference(self) -> None:
        other = self._other()
        self._show_tab("Difference", other is not None)
        if other is not None and self._shown is not None:
            sides = (other, self._shown)
            why_not = breakdown.not_by_module(*sides)
            self.aligned.setText(why_not)
            self.aligned.setVisible(bool(why_not))
            self.difference.show_table(breakdown_tables.difference_table(*sides))
            self.roles_apart.show_table(breakdown_tables.memory_difference_table(*sides))

    def _show_tab(self, title: str, shown: bool) -> None:
        titles = [self.tabs.tabText(index) for index in range(self.tabs.count())]
        self.tabs.setTabVisible(titles.index(title), shown)

    def _layer(self) -> Icicle | None:
        layers = self.icicle.canvas.layers
        return next((layer for layer in layers if isinstance(layer, Icicle)), None)

    def _point(self, index: QPointF | None) -> None:
        layer = self._layer()
        if layer is None:
            return
        cell = layer.at(index.x(), index.y()) if index is not None else None
        layer.hover(cell)
        self.readout.setText(describe_cell(cell, layer.step_us) if cell else HINT)

    def _zoom(self, index: QPointF) -> None:
        layer = self._layer()
        cell = layer.at(index.x(), index.y()) if layer is not None else None
        if cell is not None:
            self.icicle.set_x_range(cell.start_us, cell.stop_us)


def _modules_by_kernel(study: Study) -> list[str]:
    """Return the full name and the modules of each kernel, in the order of its table."""
    table = study.tables["kernels"]
    modules: dict[str, dict[str, None]] = {}
    for name, module in zip(table["name"], table["module"], strict=True):
        modules.setdefault(str(name), {})[str(module)] = None
    return [
        "\n".join([name, *list(modules[name])[:_MOST_MODULES]])
        for name in breakdown.by(study, "name")
    ]
