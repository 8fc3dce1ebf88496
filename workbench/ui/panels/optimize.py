"""The best configuration: what to search for, the Pareto front as it grows, and the verdicts."""

from __future__ import annotations

from functools import partial
from typing import Any

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtWidgets import (
    QHBoxLayout,
    QMenu,
    QStackedWidget,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from sessions.model import Study
from sessions.plain_text import capitalized, for_menu
from sessions.studies.attribution.words import (
    HIGH,
    LOW,
    RATIO,
    VERDICT,
    rows,
)
from sessions.studies.optimization.words import (
    CANDIDATES,
    best_row,
    candidates_table,
    headline,
    options_table,
    remarks,
    verdicts_table,
)
from sessions.tables import Table
from workbench.plots import PLOTS, Run
from workbench.ui.controllers.optimizations import OBJECTIVES, Optimizations
from workbench.ui.controllers.presets import Presets
from workbench.ui.menus.option_picker import NoWheelComboBox
from workbench.ui.panels import _verdict_lines as verdict_lines
from workbench.ui.panels import _widgets
from workbench.ui.panels._chart import Chart
from workbench.ui.panels._editors import NoWheelDoubleSpinBox
from workbench.ui.panels._splitter import Splitter
from workbench.ui.panels._table import PlainTable, with_interval
from workbench.ui.panels._throttle import ThrottledCall
from workbench.ui.panels._wrapped_row import WrappedRow
from workbench.ui.panels.empty import Empty
from workbench.ui.process.thread_pool import Tasks
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel

PERIOD_MS = 200  # between two looks while candidates race
_CHOICES_PX = 232
_TEXT_PX = 240  # largest width of a column of names
_NOTE_PX = 240  # least width of the notes
_MOST_GIB = 4096.0


class OptimizePanel(QWidget):
    """Form of an optimization, beside the newest optimization of the shown session."""

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        presets: Presets,
        optimizations: Optimizations,
        theme: ThemeModel,
        tasks: Tasks,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._run, self._presets = session, run, presets
        self._theme, self.optimizations = theme, optimizations
        self.setProperty("panel", True)
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.chart = Chart(PLOTS["pareto"], theme.current, tasks)
        self.chart.setMinimumSize(240, 140)
        self.verdicts, self.candidates, self.options = PlainTable(), PlainTable(), PlainTable()
        for table in (self.verdicts, self.candidates, self.options):
            table.wrap(_NOTE_PX)
        self._listed = ("", 0)  # session, and its number of optimizations, of the rows
        self.candidates.itemSelectionChanged.connect(self._show_actions)
        self.headline = _widgets.title()
        self.best, self.about, self.details = (_widgets.note() for _ in range(3))
        self.why_not = _widgets.note()
        self.run = _widgets.button("Optimize")
        self.run.clicked.connect(self.optimizations.run)
        self.apply = _widgets.button("Apply")
        self.apply.clicked.connect(self._apply)
        self.save = _widgets.button("Save as toggle set")
        self.save.clicked.connect(self._save)
        self.chosen = _widgets.note()
        self.objective = self._make_objective()
        self.limit = self._make_limit()
        self.toggles = _widgets.button()  # without a frame it would seem indented
        self.toggles.setToolTip("The toggles that are searched; the others do not change")
        self.toggles.setMenu(QMenu(self.toggles))
        tip = "Time limit of the search, with builds, compilation, checks and verdicts"
        self.budget = _widgets.budget_box(self.optimizations, 86400, tip)
        self.empty = Empty(
            theme,
            "optimize",
            "No optimization yet",
            "Press Optimize. Configurations alternate; slow, wrong and too large ones drop out, "
            "and the best is measured again before it is proposed.",
        )
        self._pages = QStackedWidget()
        self._pages.addWidget(self.empty)
        self._pages.addWidget(self._make_results())
        row = _widgets.tight(QHBoxLayout(self), 0)
        row.addWidget(self._make_choices())
        row.addWidget(self._pages, 1)
        self._throttled = ThrottledCall(self._show, self, PERIOD_MS)
        changes = (session.studiesChanged, run.stateChanged, configuration.availabilityChanged)
        for changed in (*changes, configuration.editedChanged, configuration.catalogueChanged):
            changed.connect(self._throttled.schedule)
        session.sessionChanged.connect(self._show)
        theme.changed.connect(self._draw)
        self._draw()

    # The form

    def _make_objective(self) -> NoWheelComboBox:
        box = NoWheelComboBox()
        box.setAccessibleName("Objective")
        for name, title in OBJECTIVES.items():
            box.addItem(title, name)
        box.currentIndexChanged.connect(
            lambda: setattr(self.optimizations, "objective", str(box.currentData()))
        )
        return box

    def _make_limit(self) -> NoWheelDoubleSpinBox:
        box = NoWheelDoubleSpinBox()
        box.setRange(0.0, _MOST_GIB)
        box.setDecimals(1)
        box.setSuffix(" GiB")
        box.setSpecialValueText("no limit")
        box.setToolTip("Largest peak memory of the result")
        box.setAccessibleName("Memory limit in GiB")
        box.valueChanged.connect(partial(setattr, self.optimizations, "memory_limit_gib"))
        return box

    def _make_choices(self) -> QWidget:
        side = _widgets.FormColumn(_CHOICES_PX, 0.25)
        layout = side.rows
        layout.addWidget(_widgets.heading("Search for"))
        layout.addWidget(self.objective)
        for title, box in (("Memory", self.limit), ("Budget", self.budget)):
            line = QHBoxLayout()
            line.addWidget(_widgets.muted(title))
            line.addWidget(box, 1)
            layout.addLayout(line)
        layout.addWidget(self.toggles)
        layout.addWidget(self.run)
        layout.addWidget(self.why_not)
        layout.addStretch(1)
        return side

    def _show_choices(self) -> None:
        optimizations, menu = self.optimizations, self.toggles.menu()
        searched = optimizations.searched()
        if list(searched) != [action.data() for action in menu.actions()]:
            menu.clear()
            for name, title in searched.items():
                action = menu.addAction(for_menu(title))
                action.setData(name)
                action.setCheckable(True)
                action.toggled.connect(partial(self._exclude, name))
        for action in menu.actions():
            with QSignalBlocker(action):
                action.setChecked(action.data() not in optimizations.excluded)
        count = len(searched.keys() - optimizations.excluded)
        which = "All" if count == len(searched) else f"{count} of {len(searched)}"
        self.toggles.setText(f"{which} toggles ▾")
        reason = optimizations.why_not()
        _widgets.allow(self.run, reason)
        progress = self._run.progress
        if optimizations.busy and progress is not None:
            text = self._session.titled(progress.text)
            reason = f"{progress.task.capitalize()}: {text}"
        self.why_not.setText(reason)

    def _exclude(self, name: str, is_searched: bool) -> None:
        self.optimizations.exclude(name, is_searched)
        self._show_choices()

    # The results

    def _make_results(self) -> QWidget:
        self.tabs = QTabWidget()
        self.tabs.setDocumentMode(True)
        self.tabs.addTab(self.candidates, "Configurations")
        self.tabs.addTab(self.verdicts, "Verdicts")
        self.tabs.addTab(self.options, "Options")
        buttons = WrappedRow(self.apply, self.save)
        body, head = _widgets.surface(), _widgets.surface()
        details = _widgets.expander("Details", self._theme.current, self.details)
        lines = (self.headline, self.best, self.about, details, self.details, buttons, self.chosen)
        head.setLayout(_widgets.head(*lines))
        column = _widgets.tight(QVBoxLayout(), 0)
        column.addWidget(_widgets.FittedScrollArea(head))
        parts = ((self.chart, 1), (self.tabs, 1))
        column.addWidget(_widgets.scrolled(Splitter(Qt.Orientation.Vertical, *parts)), 1)
        body.setLayout(column)
        return body

    @property
    def study(self) -> Study | None:
        """The newest optimization of the shown session."""
        return next(reversed(self.optimizations.all), None)

    def _draw(self) -> None:
        self.chart.set_theme(self._theme.current)
        self._show()

    def _show(self) -> None:
        self._show_choices()
        study = self.study
        self._pages.setCurrentIndex(0 if study is None else 1)
        if study is None:
            return
        session = self._session
        words = session.titled(headline(study, named=False))
        if self.optimizations.busy and session.live:
            words = f"Searching: {words}"
        self.headline.setText(capitalized(words))
        best = best_row(study)
        self.best.setText("" if best is None else session.titled(str(best["title"])))
        self.best.setVisible(best is not None)
        brief, *details = remarks(study) or [""]
        self.about.setText(session.titled(brief))
        self.details.setText(session.titled(" ".join(details)))
        self.chart.show_runs([Run(session.shown, titled=session.titled).alone(study)])
        self._show_candidates(study)
        self.options.show_table(self._titled(options_table(study)))
        self._show_verdicts(study)
        self._show_actions()

    def _show_candidates(self, study: Study) -> None:
        listed, self._listed = self._listed, (self._session.shown.id, len(self.optimizations.all))
        with QSignalBlocker(self.candidates):
            if listed != self._listed:  # a row is another configuration
                self.candidates.setRowCount(0)
            row = self.candidates.currentRow()
            self.candidates.show_table(self._titled(candidates_table(study)))
            self.candidates.narrow(_TEXT_PX)
            if row >= 0:
                self.candidates.selectRow(row)

    def _show_verdicts(self, study: Study) -> None:
        verdicts = with_interval(self._titled(verdicts_table(study)), RATIO, LOW, HIGH)
        self.verdicts.show_table(verdicts)
        self.verdicts.narrow(_TEXT_PX)
        column = verdicts.column(VERDICT)
        for number, row in enumerate(verdicts.rows):
            item, verdict = self.verdicts.item(number, column), str(row[column])
            if item is not None:
                name = verdict_lines.ICONS.get(verdict, "unknown")
                tone = verdict_lines.TONES.get(verdict, "")
                verdict_lines.dress(item, name, tone, self._theme.current)

    def _titled(self, table: Table) -> Table:
        titled = self._session.titled
        cells = [[titled(c) if isinstance(c, str) else c for c in row] for row in table.rows]
        return Table(table.title, table.columns, cells)

    # Apply and Save

    def _row(self) -> dict[str, Any] | None:
        """Return the selected configuration, or else the best."""
        study = self.study
        if study is None:
            return None
        candidates = rows(study, CANDIDATES)
        selected = {index.row() for index in self.candidates.selectedIndexes()}
        if len(selected) == 1 and (number := selected.pop()) < len(candidates):
            return candidates[number]
        return best_row(study)

    def _show_actions(self) -> None:
        study, row = self.study, self._row()
        if study is None:
            return
        reason = apply_reason = "No configuration can be proposed."
        if row is not None:
            reason = "Its numbers are wrong." if row["wrong"] == 1 else ""
            apply_reason = reason or self.optimizations.why_not_apply(study, row)
        _widgets.allow(self.apply, apply_reason)
        _widgets.allow(self.save, reason or self._presets.why_not())
        best = best_row(study)
        is_best = row is None or (best is not None and row["candidate"] == best["candidate"])
        self.chosen.setText("" if row is None or is_best else self._session.titled(row["title"]))

    def _apply(self) -> None:
        study, row = self.study, self._row()
        if study is not None and row is not None:
            self.optimizations.apply(study, row)

    def _save(self) -> None:
        study, row = self.study, self._row()
        if study is not None and row is not None:
            name = self.optimizations.save(study, row)
            self.chosen.setText(f"Saved as toggle set {name}.")
