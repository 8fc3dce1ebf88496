"""The verdict of a paired comparison, live: the shrinking interval, the verdict, the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QHBoxLayout,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from sessions.model import PairedComparison
from sessions.plain_text import first_clause, sentence, wrapped
from sessions.studies import prediction
from sessions.verdicts.background import newest_requested
from sessions.verdicts.verdict_tables import numerics_table
from sessions.verdicts.verdict_words import (
    headline,
    interim_headline,
    ratio_line,
    remarks,
    standing,
)
from workbench.plots import PLOTS, Run
from workbench.theming import fonts
from workbench.ui.controllers.verdicts import Verdicts
from workbench.ui.panels import _verdict_lines as verdict_lines
from workbench.ui.panels import _widgets
from workbench.ui.panels._chart import Chart
from workbench.ui.panels._splitter import Splitter
from workbench.ui.panels._table_view import TableView
from workbench.ui.panels._throttle import ThrottledCall
from workbench.ui.panels._verdicts_table import MOST_VERDICTS, VerdictsTable
from workbench.ui.panels._wrapped_row import WrappedRow
from workbench.ui.panels.empty import Empty
from workbench.ui.process.thread_pool import Tasks
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel

JUDGE, JUDGE_SHORT = "Verdict against the configuration before", "Against the one before"
_PADDING_PX = 56  # the button around its name, and the panel around its buttons
LEAST_PX = 240  # lowest height; text wraps at the actual width, not at the least
ROOMY_PX = 320  # least height with room for a note under the table


class VerdictPanel(QWidget):
    """A comparison of the shown session: the newest, until a row is chosen."""

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        verdicts: Verdicts,
        theme: ThemeModel,
        tasks: Tasks,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._run, self._verdicts, self._theme = session, run, verdicts, theme
        self._chosen: int | None = None  # index of the session's comparison; None: the newest
        self._shown_details: object = None  # the lines that are shown
        # The session, and its number of comparisons, when a row was chosen.
        self._known: tuple[str, int] = ("", 0)
        self.chart = Chart(PLOTS["verdict"], theme.current, tasks)
        self.chart.setMinimumSize(240, 140)
        self.chart.cursorMoved.connect(self.chart.set_cursor)
        self.headline = _widgets.title()
        self.ratio = _widgets.note()
        self.progress = _widgets.note()
        self.more = _widgets.button()
        self.more.clicked.connect(verdicts.measure_more)
        self.judge = _widgets.button(JUDGE)
        self.judge.setAccessibleName(JUDGE)
        self.judge.clicked.connect(verdicts.against_before)
        self.calibrate = _widgets.button("Calibrate")
        self.calibrate.clicked.connect(verdicts.calibrate)
        self.floor = _widgets.note()
        tip = "Time limit of a new comparison"
        self._details_open = False
        self.budget = _widgets.budget_box(verdicts, 3600, tip)
        verdicts.defaultsChanged.connect(lambda: self.budget.setValue(verdicts.budget_s))
        self.table = VerdictsTable(theme)
        self.table.cellActivated.connect(self._choose)
        self._left_out = _widgets.note()
        self._rows = QVBoxLayout()
        self._pages = QStackedWidget()
        self.empty = Empty(
            theme,
            "verdict",
            "No verdict yet",
            "Run a configuration, change a toggle, then choose Verdict against the configuration "
            "before (F8). Both configurations run in alternating blocks until it is clear which is "
            "faster.",
        )
        self._pages.addWidget(self.empty)
        self._pages.addWidget(self._make_body())
        layout = _widgets.tight(QVBoxLayout(self), 0)
        layout.addWidget(self._pages)
        self._throttled = ThrottledCall(self._show, self)
        session.comparisonsChanged.connect(self._throttled.schedule)
        changes = (run.stateChanged, configuration.editedChanged, session.segmentsChanged)
        for changed in (*changes, configuration.catalogueChanged):
            changed.connect(self._throttled.schedule)
        session.sessionChanged.connect(self._show)
        theme.changed.connect(self._draw)
        self._draw()

    def _make_body(self) -> QWidget:
        buttons = (self.more, self.judge, self.calibrate)
        self._button_row = button_row = WrappedRow(*buttons)
        self._noise = QWidget()  # a line of its own: the buttons fill a small window
        noise = _widgets.tight(QHBoxLayout(self._noise))
        noise.addWidget(_widgets.muted("Budget"))
        noise.addWidget(self.budget)
        noise.addWidget(self.floor, 1)
        details = QWidget()
        details.setProperty("panel", True)
        self._rows = _widgets.tight(QVBoxLayout(details), 4)
        self._rows.setContentsMargins(12, 4, 12, 8)
        body = _widgets.surface()
        self._column = column = _widgets.tight(QVBoxLayout(body), 0)
        lines = (self.headline, self.ratio, button_row, self._noise, self.progress)
        self._head = _widgets.head(*lines)
        column.addLayout(self._head)
        self._notes = _widgets.scrolled(details)
        self._split = Splitter(Qt.Orientation.Horizontal, (self.chart, 5), (self._notes, 3))
        column.addWidget(self._split, 1)
        column.addWidget(self.table)
        column.addWidget(self._left_out)
        return body

    def minimumSizeHint(self) -> QSize:
        """Return a size that fits the short names of the buttons, and covers no other dock."""
        short = self.judge.fontMetrics().horizontalAdvance(JUDGE_SHORT) + _PADDING_PX
        return QSize(max(self.more.minimumSizeHint().width() + _PADDING_PX, short), LEAST_PX)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Shorten the name of a button, and leave out parts, if there is no room."""
        super().resizeEvent(event)
        self.judge.setText(self._judge_text())
        self._fit()

    def _fit(self) -> None:
        """Leave out the budget, or the chart, or both, in a panel that is too low for them."""
        self._left_out.setVisible(self.table.first > 0 and self.height() >= ROOMY_PX)
        self._measure_again()
        budget_px = self._noise.minimumSizeHint().height() + self._head.spacing()
        notes_px = self._notes.minimumSizeHint().height()
        rest_px = self._rest_px(self.width())
        for budget, chart in ((True, True), (False, True), (True, False), (False, False)):
            chart_px = self.chart.minimumHeight() if chart else 0
            if rest_px + budget * budget_px + max(notes_px, chart_px) <= self.height():
                break
        self._noise.setVisible(budget)
        self.chart.setVisible(chart)
        self._measure_again()

    def least_height(self, width: int) -> int:
        """Return the height that the panel needs without the budget and the chart."""
        if self._pages.currentIndex() == 0:
            return self.empty.minimumSizeHint().height()
        return self._rest_px(width) + self._notes.minimumSizeHint().height()

    def _rest_px(self, width: int) -> int:
        """Return the height of all parts but the budget, the chart and the notes."""
        rest_px = self._column.totalMinimumHeightForWidth(width)
        rest_px -= self._split.minimumSizeHint().height()
        if not self._noise.isHidden():
            rest_px -= self._noise.minimumSizeHint().height() + self._head.spacing()
        return rest_px

    def _measure_again(self) -> None:
        """Forget sizes from before parts were shown or hidden, which Qt would do later."""
        self._head.invalidate()
        self._split.updateGeometry()

    def _judge_text(self) -> str:
        used = self._button_row.sizeHint().width() - self.judge.sizeHint().width()
        full = self.judge.fontMetrics().horizontalAdvance(JUDGE) + _PADDING_PX
        return JUDGE if used + full <= self.width() else JUDGE_SHORT

    def _choose(self, row: int) -> None:
        """Show the comparison of a row again."""
        self._chosen = row + self.table.first
        self._show()

    def _draw(self) -> None:
        self.chart.set_theme(self._theme.current)
        self._show()

    def _show(self) -> None:
        session, comparisons = self._session.shown, self._verdicts.all
        known, self._known = self._known, (session.id, len(comparisons))
        if known != self._known:
            self._chosen = None
        self._pages.setCurrentIndex(1 if comparisons else 0)
        if not comparisons:
            return
        newest_index = newest_requested(comparisons)
        index = newest_index if self._chosen is None else self._chosen
        index = len(comparisons) - 1 if index is None else index  # all ran in the background
        comparison, newest = comparisons[index], index == newest_index
        measuring = self._verdicts.measuring
        say = interim_headline if measuring and newest else headline
        self.headline.setText(self._session.titled(say(comparison)))
        _widgets.set_tone(self.headline, verdict_lines.tone(comparison))
        self.ratio.setText("; ".join(filter(None, (ratio_line(comparison), standing(comparison)))))
        self.ratio.setToolTip(_basis(comparison))
        self.table.show_comparisons(session.comparisons, index)
        self._left_out.setText(
            f"The newest {MOST_VERDICTS} of {len(comparisons):,} verdicts. All of them: workbench "
            "export FILE --table verdicts."
        )
        self._show_actions(measuring, newest)
        self.chart.show_runs([Run(session, comparison=index)])
        self._show_details(comparison)
        self._fit()

    def _show_actions(self, measuring: bool, newest: bool) -> None:
        verdicts = self._verdicts
        older = "" if newest else "Only the newest comparison can be extended."
        why_not_more = older or verdicts.why_not_more()
        more_text = "" if older else verdicts.more_text()
        for button, why_not, text in (
            (self.more, why_not_more, more_text or "Measure more"),
            (self.judge, verdicts.why_not_before(), self._judge_text()),
        ):
            button.setText(text)
            _widgets.allow(button, why_not, JUDGE if text == JUDGE_SHORT else "")
        tip = "Compare this configuration with itself; verdicts claim no smaller differences"
        _widgets.allow(self.calibrate, verdicts.why_not_calibrate(), tip)
        self.floor.setText(verdicts.floor_text())
        progress = self._run.progress
        if measuring and progress is not None and progress.fraction is not None:
            self.progress.setText(f"{100 * progress.fraction:.0f} % of the budget is spent")
        else:
            self.progress.setText("" if measuring else verdicts.why_not_before())
        self.progress.setVisible(bool(self.progress.text()))

    def _show_details(self, comparison: PairedComparison) -> None:
        sentence = prediction.outcome(comparison)
        outcome = [f"{sentence}."] if sentence else []
        lines = [(text, "info", "muted") for text in [*outcome, *remarks(comparison)]]
        for side, arm in zip("AB", comparison.arms, strict=False):
            lines.append((f"{side}: {arm}", "", ""))
            segments, titles = self._session.shown.segments, self._session.titles
            lines += verdict_lines.of_arm(comparison, side, segments, titles)
        shown = (lines, self._theme.current.name)
        if shown == self._shown_details:  # the text may be read, or selected to be copied
            return
        self._shown_details = shown
        _widgets.clear(self._rows)
        for line in lines:
            self._add(*line)
        self._add_details(comparison, [text for text, mark, _ in lines if mark])
        self._rows.addStretch(1)

    def _add_details(self, comparison: PairedComparison, texts: Sequence[str]) -> None:
        """Add the numerical errors with their limits, and the complete texts, behind Details."""
        table = numerics_table(comparison)
        longer = [text for text in texts if first_clause(text) != text]
        if not table.rows and not longer:
            return
        body = QWidget()
        column = _widgets.tight(QVBoxLayout(body), 4)
        if table.rows:
            view = TableView()
            view.show_table(table)
            fonts.follow(view, partial(_fit_height, view))
            column.addWidget(view)
        for text in longer:
            column.addWidget(_widgets.note(text))
        expander = _widgets.expander("Details", self._theme.current, body)
        expander.setChecked(self._details_open)
        expander.toggled.connect(self._remember_details)
        self._rows.addWidget(expander)
        self._rows.addWidget(body)

    def _remember_details(self, are_open: bool) -> None:
        self._details_open = are_open  # new lines keep this state

    def _add(self, text: str, mark: str, role: str) -> None:
        if not mark:
            title = _widgets.heading(text)
            title.setWordWrap(True)  # a long one would push all lines beyond the edge
            self._rows.addWidget(title)
            return
        tone = role if role in ("warning", "bad") else ""
        label = _widgets.brief_note(first_clause(text), tone)
        label.setToolTip(wrapped(text))
        self._rows.addWidget(_widgets.marked(label, mark, self._theme.current, role))


def _fit_height(view: TableView) -> None:
    """Make a table as high as its heading and its rows."""
    lines = view.rowCount() + 1
    view.setFixedHeight(lines * fonts.row_px(view.font()) + _PADDING_PX // 4)


def _basis(comparison: PairedComparison) -> str:
    """Return the prediction and its reasons, for the tool tip."""
    predicted = prediction.of(comparison)
    if predicted is None:
        return ""
    return sentence(prediction.line(predicted))
