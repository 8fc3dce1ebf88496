"""Attribution of time and memory to toggles: choose them, measure them, see the waterfall."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QCheckBox,
    QHBoxLayout,
    QStackedWidget,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from sessions.model import Study
from sessions.numbers import MISSING, text
from sessions.plain_text import capitalized
from sessions.studies.attribution.words import (
    BLOCKED,
    EFFECT,
    HIGH,
    LOW,
    ONE_BUILD,
    RATIO,
    TOGETHER,
    VERDICT,
    effects_table,
    headline,
    remarks,
    wrong_arms,
)
from sessions.tables import Table
from workbench.plots import PLOTS, Run
from workbench.theming import fonts
from workbench.ui.controllers.attributions import MODES, Attributions
from workbench.ui.menus.option_picker import NoWheelComboBox
from workbench.ui.panels import _verdict_lines as verdict_lines
from workbench.ui.panels import _widgets
from workbench.ui.panels._chart import Chart
from workbench.ui.panels._splitter import Splitter
from workbench.ui.panels._table import PlainTable, with_interval
from workbench.ui.panels._throttle import ThrottledCall
from workbench.ui.panels.empty import Empty
from workbench.ui.process.thread_pool import Tasks
from workbench.ui.state import config_edit
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel

_CHOICES_PX = 272
_BOX_PX = 112  # beside the text of a line: the box and two arrows
_ARROWS = (Qt.ArrowType.UpArrow, Qt.ArrowType.DownArrow)
_NOTE_PX = 240  # least width of the notes
_TEXT_PX = 184  # largest width of names: the notes need room
_FRAME_PX, _GAP_PX = 96, 4  # the chart around its rows, and between two rows
_TABLE_PX = 108  # least height of the table: a heading and two rows
_ELIDE = Qt.TextElideMode.ElideRight


class AttributionPanel(QWidget):
    """Panel of the attributions of the shown session, with the controls of the next attribution."""

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        attributions: Attributions,
        theme: ThemeModel,
        tasks: Tasks,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._run = session, run
        self._configuration, self._attributions = configuration, attributions
        self._theme = theme
        self.setProperty("panel", True)
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.boxes: dict[str, QCheckBox] = {}
        self.movers: dict[str, tuple[QToolButton, QToolButton]] = {}  # earlier, later
        self.chart = Chart(PLOTS["attribution"], theme.current, tasks)
        self.chart.setMinimumSize(240, 140)
        self.table = PlainTable()
        self.table.wrap(_NOTE_PX)
        self.table.setMinimumHeight(_TABLE_PX)
        self.which = NoWheelComboBox()  # if there are several
        self.which.setToolTip("The shown attribution")
        self.which.setAccessibleName(self.which.toolTip())
        self.which.activated.connect(self._show)
        self._offered: list[str] = []
        self.headline = _widgets.title()
        self.about, self.method = _widgets.note(), _widgets.note()
        self.why_not = _widgets.note()
        self.run = _widgets.button("Attribute")
        self.run.clicked.connect(attributions.run)
        self.mode = self._make_mode()
        tip = "Time limit of the measurement; building the configurations takes additional time"
        self.budget = _widgets.budget_box(attributions, 7200, tip)
        self.empty = Empty(
            theme,
            "attribution",
            "No attribution yet",
            "Switch several optimizations on, tick those to measure, and press Attribute. "
            "Combinations alternate until it is clear how much time and memory each optimization "
            "saves.",
        )
        self._pages = QStackedWidget()
        self._pages.addWidget(self.empty)
        self._pages.addWidget(self._make_results())
        row = _widgets.tight(QHBoxLayout(self), 0)
        row.addWidget(self._make_choices())
        row.addWidget(self._pages, 1)
        self._throttled = ThrottledCall(self._show, self)
        changes = (session.studiesChanged, run.stateChanged, configuration.availabilityChanged)
        for changed in (*changes, configuration.editedChanged, configuration.catalogueChanged):
            changed.connect(self._throttled.schedule)
        session.sessionChanged.connect(self._show)
        theme.changed.connect(self._draw)
        self._draw()

    def _make_mode(self) -> NoWheelComboBox:
        box = NoWheelComboBox()
        box.setAccessibleName("How the effects of the toggles are separated")
        for name, title in MODES.items():
            box.addItem(title, name)
        box.currentIndexChanged.connect(self._set_mode)
        return box

    def _set_mode(self) -> None:
        self._attributions.mode = str(self.mode.currentData())
        self._show_choices()

    def _make_choices(self) -> QWidget:
        """Return the column of controls for a new attribution."""
        side = _widgets.FormColumn(_CHOICES_PX, 0.5)
        layout = side.rows
        layout.addWidget(_widgets.heading("Toggles to measure"))
        self._rows = _widgets.tight(QVBoxLayout(), 4)
        layout.addLayout(self._rows)
        layout.addWidget(self.mode)
        line = QHBoxLayout()
        line.addWidget(_widgets.muted("Budget"))
        line.addWidget(self.budget, 1)
        layout.addLayout(line)
        layout.addWidget(self.run)
        layout.addWidget(self.why_not)
        layout.addStretch(1)
        return side

    def _make_results(self) -> QWidget:
        body = _widgets.surface()
        column = _widgets.tight(QVBoxLayout(body), 4)
        head = _widgets.surface()
        details = _widgets.expander("Details", self._theme.current, self.method)
        lines = (self.which, self.headline, self.about, details, self.method)
        head.setLayout(_widgets.head(*lines, below=0))
        column.addWidget(_widgets.FittedScrollArea(head))
        parts = ((self.chart, 3), (self.table, 2))
        column.addWidget(_widgets.scrolled(Splitter(Qt.Orientation.Vertical, *parts)), 1)
        return body

    def _draw(self) -> None:
        self.chart.set_theme(self._theme.current)
        self._show()

    def _show(self) -> None:
        self._show_choices()
        studies = self._attributions.all
        self._pages.setCurrentIndex(1 if studies else 0)
        self._offer(studies)
        if studies:
            self._show_study(studies[self.which.currentData() - 1])

    def _offer(self, studies: list[Study]) -> None:
        """Name the attributions, the newest first; another one is shown when it comes."""
        names = [self._session.shown.id, *(study.title for study in studies)]
        if names != self._offered:
            self._offered = names
            self.which.clear()
            for number, study in reversed(list(enumerate(studies, 1))):
                self.which.addItem(self._session.titled(f"{number}: {study.title}"), number)
        self.which.setVisible(len(studies) > 1)

    def _show_choices(self) -> None:
        attributions, catalogue = self._attributions, self._configuration.catalogue
        candidates, chosen = attributions.candidates(), attributions.chosen()
        if list(self.boxes) != list(candidates) and catalogue is not None:
            _widgets.clear(self._rows)
            self.boxes, self.movers = {}, {}
            for name in candidates:
                self._rows.addWidget(self._make_choice(name))
        for name, box in self.boxes.items():
            if catalogue is not None:
                toggle = config_edit.toggle_of(catalogue, name)
                option = config_edit.option_title(toggle, candidates[name])
                text = f"{toggle.title}: {option}"
                metrics = box.fontMetrics()
                room = fonts.in_type(_CHOICES_PX, box.font(), 0.5) - _BOX_PX
                lines = (
                    [text] if metrics.horizontalAdvance(text) <= room else [toggle.title, option]
                )
                box.setText("\n".join(metrics.elidedText(line, _ELIDE, room) for line in lines))
                box.setToolTip(text)
                box.setAccessibleName(text)
            for by, mover in zip((-1, 1), self.movers[name], strict=True):
                mover.setAccessibleName(f"{text}: {'earlier' if by < 0 else 'later'}")
                last = 0 if by < 0 else len(candidates) - 1
                mover.setEnabled(list(candidates).index(name) != last)
            box.blockSignals(True)
            box.setChecked(name in chosen)
            box.blockSignals(False)
        reason = attributions.why_not()
        _widgets.allow(self.run, reason)
        progress = self._run.progress
        if attributions.busy and progress is not None:
            text = self._session.titled(progress.text)
            reason = f"{progress.task.capitalize()}: {text}"
        self.why_not.setText(reason)

    def _make_choice(self, name: str) -> QWidget:
        """Return the row of a candidate: a box that includes it, and arrows that move it."""
        line = QWidget()
        row = _widgets.tight(QHBoxLayout(line), 2)
        box = QCheckBox()
        box.toggled.connect(lambda on: self._choose(name, on))
        row.addWidget(box, 1)
        movers = QToolButton(), QToolButton()
        for by, mover, arrow in zip((-1, 1), movers, _ARROWS, strict=True):
            mover.setArrowType(arrow)
            mover.setAutoRaise(True)
            mover.setToolTip("The order in which a ladder adds the toggles")
            mover.clicked.connect(lambda _=False, by=by: self._move(name, by))
            row.addWidget(mover)
        self.boxes[name], self.movers[name] = box, movers
        return line

    def _move(self, name: str, by: int) -> None:
        self._attributions.move(name, by)
        self._show_choices()
        self.movers[name][by > 0].setFocus()

    def _choose(self, name: str, take_part: bool) -> None:
        self._attributions.choose(name, take_part)
        self._show_choices()

    def _show_study(self, study: Study) -> None:
        headline_text = self._session.titled(headline(study))
        if self._attributions.measuring and study is self._attributions.newest:
            headline_text = f"Measuring: {headline_text}"
        self.headline.setText(capitalized(headline_text))
        table = _with_titles(effects_table(study), self._session.titled)
        verdict_column = table.column(VERDICT)
        verdicts = [str(row[verdict_column]) for row in table.rows]
        total = next((str(row[verdict_column]) for row in table.rows if TOGETHER in row), "")
        tone = verdict_lines.TONES.get(total, "")
        _widgets.set_tone(self.headline, "bad" if wrong_arms(study) else tone)
        sentences = remarks(study)
        method = [*sentences[:2], *(text for text in sentences if text == ONE_BUILD)]
        about = " ".join(text for text in sentences if text not in method)
        self.about.setText(self._session.titled(about))
        self.method.setText(self._session.titled(" ".join(method)))
        rows = len(table.rows) + 2  # the base, and mostly all together
        self.chart.setMinimumHeight(_FRAME_PX + rows * (self.fontMetrics().height() + _GAP_PX))
        self.chart.show_runs([Run(self._session.shown, titled=self._session.titled).alone(study)])
        self.table.show_table(table)
        for row, verdict in enumerate(verdicts):
            item = self.table.item(row, verdict_column)
            assert item is not None
            name = verdict_lines.ICONS.get(verdict, "unknown")
            verdict_lines.dress(
                item, name, verdict_lines.TONES.get(verdict, ""), self._theme.current
            )
        for column, heading in enumerate(table.columns):
            known = {text(row[column]) for row in table.rows} - {MISSING, "", TOGETHER, BLOCKED}
            least = 2 if heading.name == EFFECT else 1  # hide a single value
            self.table.setColumnHidden(column, bool(table.rows) and len(known) < least)
        self.table.narrow(_TEXT_PX)


def _with_titles(effects: Table, titled: Callable[[str], str]) -> Table:
    """Return the effects with titles instead of names, and each ratio beside its interval."""
    table = with_interval(effects, RATIO, LOW, HIGH)
    rows = [[titled(cell) if isinstance(cell, str) else cell for cell in row] for row in table.rows]
    return Table(table.title, table.columns, rows)
