"""The panel of sweeps: varied fields, their values, arms, and the results as they arrive."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtWidgets import (
    QCheckBox,
    QGridLayout,
    QHBoxLayout,
    QLineEdit,
    QMenu,
    QStackedWidget,
    QTabWidget,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from sessions.model import Study
from sessions.numbers import counted
from sessions.plain_text import for_menu
from sessions.studies import sweep
from workbench.plots import PLOTS, Run
from workbench.ui.controllers.presets import Presets
from workbench.ui.controllers.sweeps import ARMS, Sweeps
from workbench.ui.menus.option_picker import NoWheelComboBox
from workbench.ui.panels import _widgets
from workbench.ui.panels._chart import Chart
from workbench.ui.panels._editors import NoWheelDoubleSpinBox
from workbench.ui.panels._splitter import Splitter
from workbench.ui.panels._table import PlainTable
from workbench.ui.panels._throttle import ThrottledCall
from workbench.ui.panels._wrapped_row import WrappedRow
from workbench.ui.panels.empty import Empty
from workbench.ui.process.thread_pool import Tasks
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel

PERIOD_MS = 200  # between two looks while points arrive
_CHARTS = ("sweep_time", "sweep_throughput", "sweep_memory", "sweep_map")
_TABS = {"sweep_throughput": "Throughput", "sweep_memory": "Peak memory", "sweep_map": "Map"}
_TEXT_PX = 160  # largest width of a column of names


class SweepPanel(QWidget):
    """Form of a sweep, above the newest sweep of the shown session."""

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        presets: Presets,
        sweeps: Sweeps,
        theme: ThemeModel,
        tasks: Tasks,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._run, self._sweeps, self._theme = session, run, sweeps, theme
        self.setProperty("panel", True)
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.fields = [NoWheelComboBox(), NoWheelComboBox()]
        self.values = [QLineEdit(), QLineEdit()]
        self.arms = {name: QCheckBox(title) for name, title in ARMS.items()}
        self.presets = QToolButton()
        self.presets.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.presets.setToolTip("Toggle sets to measure too, each applied to the configuration")
        self.presets.setMenu(QMenu(self.presets))
        self.seconds = NoWheelDoubleSpinBox()
        self.run = _widgets.button("Run sweep")
        self.run.clicked.connect(sweeps.run)
        self.status = _widgets.note()
        self.charts = {name: Chart(PLOTS[name], theme.current, tasks) for name in _CHARTS}
        for chart in self.charts.values():
            chart.setMinimumSize(200, 130)
            chart.cursorMoved.connect(chart.set_cursor)
        self.points, self.fits = PlainTable(), PlainTable()
        self.headline = _widgets.note()
        self._pages = QStackedWidget()
        self.empty = Empty(
            theme,
            "sweep",
            "No sweep yet",
            "Choose a field and its values, then press Run sweep: each size is measured under each "
            "arm. Out of memory is a data point, too. A curve is fitted to the times.",
        )
        self._pages.addWidget(_widgets.scrolled(self.empty))
        self._pages.addWidget(self._make_results())
        layout = _widgets.tight(QVBoxLayout(self), 0)
        layout.addWidget(self._make_form())
        layout.addWidget(_widgets.rule())
        layout.addWidget(self._pages, 1)
        self._throttled = ThrottledCall(self._show, self, PERIOD_MS)
        for changed in (
            session.studiesChanged, run.stateChanged, session.segmentsChanged,
            configuration.catalogueChanged, sweeps.changed, presets.changed,
        ):  # fmt: skip
            changed.connect(self._throttled.schedule)
        session.sessionChanged.connect(self._show)
        theme.changed.connect(self._draw)
        self._draw()

    # The form

    def _make_form(self) -> QWidget:
        form = QWidget()
        rows = QGridLayout()
        rows.setHorizontalSpacing(8)
        rows.setVerticalSpacing(6)
        for axis, title in enumerate(("Vary", "and")):
            box, line = self.fields[axis], self.values[axis]
            box.setAccessibleName(f"Field {axis + 1}")
            box.activated.connect(partial(self._choose_field, axis))
            line.setAccessibleName(f"Values {axis + 1}")
            line.setPlaceholderText("values between commas")
            line.textEdited.connect(partial(self._sweeps.set_values, axis))
            rows.addWidget(_widgets.muted(title), axis, 0)
            rows.addWidget(box, axis, 1)
            rows.addWidget(line, axis, 2)
        self.seconds.setRange(0.1, 3600)
        self.seconds.setSuffix(" s a point")
        self.seconds.setValue(self._sweeps.seconds)
        self.seconds.setToolTip("How long the steady steps of each point are measured")
        self.seconds.setAccessibleName("Seconds a point")
        self.seconds.valueChanged.connect(self._sweeps.set_seconds)
        rows.addWidget(self.seconds, 0, 3)
        actions = QHBoxLayout()
        actions.setSpacing(8)
        actions.addWidget(self.run, 1)
        actions.addWidget(self.presets)
        rows.addLayout(actions, 1, 3)
        rows.setColumnStretch(2, 1)
        for name, check in self.arms.items():
            check.toggled.connect(partial(self._sweeps.set_arm, name))
        arms = WrappedRow(*self.arms.values(), spacing=16)
        lines = _widgets.tight(QVBoxLayout(form), 6)  # a grid would give wrapped lines less height
        lines.setContentsMargins(12, 8, 12, 8)
        lines.addLayout(rows)
        lines.addLayout(arms)
        lines.addWidget(self.status)
        return form

    def _choose_field(self, axis: int, row: int) -> None:
        self._sweeps.set_field(axis, str(self.fields[axis].itemData(row)))

    def _show_form(self) -> None:
        sweeps = self._sweeps
        offered = sweeps.offered()
        for axis, box in enumerate(self.fields):
            choices = ([("nothing else", "")] if axis else []) + [
                (title, name) for name, title in offered.items()
            ]
            if choices != [(box.itemText(row), box.itemData(row)) for row in range(box.count())]:
                box.clear()
                for title, name in choices:
                    box.addItem(title, name)
            box.setCurrentIndex(box.findData(sweeps.fields[axis]))
            line = self.values[axis]
            line.setEnabled(bool(sweeps.fields[axis]))
            if line.text() != sweeps.values[axis] and not line.hasFocus():
                line.setText(sweeps.values[axis])
        for name, check in self.arms.items():
            with QSignalBlocker(check):
                check.setChecked(name in sweeps.arms)
            why_not = sweeps.why_not_arm(name)
            check.setEnabled(not why_not or name in sweeps.arms)
            check.setToolTip(why_not)
        self._show_presets()
        why_not = sweeps.why_not()
        _widgets.allow(self.run, why_not)
        count = sweeps.points()
        self.status.setText(why_not or counted(count, "point"))

    def _show_presets(self) -> None:
        """Add every preset as an entry that can be ticked."""
        sweeps, menu = self._sweeps, self.presets.menu()
        offered = {n: t for n, t in sweeps.offered_arms().items() if n not in ARMS}
        if list(offered) != [action.data() for action in menu.actions()]:
            menu.clear()
            for name, title in offered.items():
                action = menu.addAction(for_menu(title))
                action.setData(name)
                action.setCheckable(True)
                action.toggled.connect(partial(sweeps.set_arm, name))
        for action in menu.actions():
            with QSignalBlocker(action):
                action.setChecked(action.data() in sweeps.arms)
        chosen = sum(name in sweeps.arms for name in offered)
        self.presets.setText(f"Sets ({chosen}) ▾" if chosen else "Sets ▾")
        self.presets.setVisible(bool(offered))

    # Results

    def _make_results(self) -> QWidget:
        tabs = QTabWidget()
        tabs.setDocumentMode(True)
        for name, title in _TABS.items():
            tabs.addTab(self.charts[name], title)
        tabs.addTab(self.points, "Points")
        tabs.addTab(self.fits, "Exponents")
        self._tabs = tabs
        body = QWidget()
        column = _widgets.tight(QVBoxLayout(body), 0)
        column.addLayout(_widgets.inset(self.headline, 6, 2))
        parts = ((self.charts["sweep_time"], 1), (tabs, 1))
        charts = Splitter(Qt.Orientation.Horizontal, *parts)
        column.addWidget(_widgets.scrolled(charts), 1)
        return body

    def _draw(self) -> None:
        for chart in self.charts.values():
            chart.set_theme(self._theme.current)
        self._show()

    def _show(self) -> None:
        self._show_form()
        study = self._sweeps.newest
        self._pages.setCurrentIndex(0 if study is None else 1)
        if study is None:
            return
        self.headline.setText(self._headline(study))
        self._tabs.setTabVisible(2, sweep.dimensions(study) > 1)
        runs = [Run(self._session.shown, titled=self._session.titled)]
        for chart in self.charts.values():
            chart.show_runs(runs)
        if sweep.sweeps([study]):
            for view, table in (
                (self.points, sweep.points_table(study)),
                (self.fits, sweep.fits_table(study)),
            ):
                view.show_table(table)
                view.narrow(_TEXT_PX)

    def _headline(self, study: Study) -> str:
        """Return the progress of the sweep, or its result."""
        points = study.tables.get(sweep.POINTS)
        measured_count = 0 if points is None else len(points["arm"])
        total = study.request.get("points", measured_count)
        if self._sweeps.measuring:
            progress = self._session.titled(self._run.text)
            return f"{measured_count} of {counted(total, 'point')} measured. {progress}".strip()
        counts = (
            f"{measured_count} of {counted(total, 'point')}"
            if measured_count < total
            else counted(measured_count, "point")
        )
        text = f"{self._session.titled(study.title)}: {counts}; {study.request.get('order', '')}"
        wrong = sweep.wrong_arms(study)
        return f"{text}; {', '.join(wrong)} computed wrong numbers" if wrong else text
