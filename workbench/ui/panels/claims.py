"""The documents' claims and their measurements: holds, does not hold, or why neither."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import QPoint, Qt, QTimer
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QMenu,
    QPushButton,
    QScrollArea,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from sessions.numbers import counted
from sessions.studies import claims
from sessions.studies.claims import Row
from workbench import plot_export
from workbench.claims import documents
from workbench.theming import fonts
from workbench.theming.icons import icon
from workbench.ui.controllers.reproductions import Reproductions
from workbench.ui.panels import _widgets
from workbench.ui.panels._claim_row import COLUMNS, LINES, NARROW, STRETCH, WIDE, ClaimRow
from workbench.ui.panels._editors import NoWheelDoubleSpinBox
from workbench.ui.panels._wrapped_row import WrappedRow
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel

PERIOD_MS = 200  # between two looks while something is measured
WIDE_PX = 570  # least width, in small type, of a list with a line for each claim
_HEADINGS = ("Claim", "The document says", "Measured")


class ClaimsPanel(QWidget):
    """Panel of every claim of every document, with the results of the shown session."""

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        reproductions: Reproductions,
        theme: ThemeModel,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._run = session, run
        self._reproductions, self._theme = reproductions, theme
        self.setProperty("panel", True)
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.rows: dict[tuple[str, ...], ClaimRow] = {}
        self.run: dict[str, QPushButton] = {}  # by document
        self._counts: dict[str, QLabel] = {}
        self._documents: dict[str, QWidget] = {}  # their headings
        self._headings: list[QLabel] = []
        self._grid: QGridLayout | None = None
        self._narrow: bool | None = None
        self.headline = _widgets.title()
        self.status = _widgets.note()
        self.run_all = _widgets.button("Measure all")
        self.run_all.clicked.connect(lambda: reproductions.measure())
        self.stop = _widgets.button("Stop")
        self.stop.clicked.connect(reproductions.stop)
        self.budget = self._make_seconds(" s a claim", reproductions.budget_s, "", 0.1)
        self.budget.setToolTip(
            "Longest time of measuring for each claim; building and compiling take additional, "
            "limited time"
        )
        self.budget.valueChanged.connect(self._set_budget)
        self.limit = self._make_seconds(" s total", reproductions.limit_s, "no limit", 0)
        self.limit.setToolTip("Claims that remain after this time are reported as not measured")
        self.limit.valueChanged.connect(self._set_limit)
        self.copy = self._make_copy()
        layout = _widgets.tight(QVBoxLayout(self), 0)
        layout.addLayout(self._make_head())
        layout.addWidget(_widgets.rule())
        host = QWidget()
        self._body = _widgets.column(host)
        area = host.findChild(QScrollArea)
        assert area is not None
        # Large type may need more width than a small window has.
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
        self._area = area
        self._leads = True  # scrolls to the first result once the list is laid out
        layout.addWidget(host, 1)
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self._show)
        changes = (session.studiesChanged, run.stateChanged, configuration.catalogueChanged)
        for changed in (*changes, reproductions.changed):
            changed.connect(self._show_soon)
        session.sessionChanged.connect(self._show_session)
        theme.changed.connect(self._show)
        self._show()
        fonts.follow(self, self._arrange)

    def table(self) -> list[Row]:
        """Return the claims that have a result, for a copy of the table."""
        return [row for row in self._reproductions.rows() if row.final]

    def copy_table(self, suffix: str) -> None:
        """Put the claims on the clipboard as ``.csv`` or ``.md``."""
        make_table = claims.claims_table if suffix == ".csv" else claims.summary_table
        plot_export.copy_table(make_table(self.table(), "Claimed and measured"), suffix)

    def _make_seconds(
        self, suffix: str, value: float, special_text: str, least: float
    ) -> NoWheelDoubleSpinBox:
        box = NoWheelDoubleSpinBox()
        box.setRange(least, 36000)
        box.setSuffix(suffix)
        box.setSpecialValueText(special_text)
        box.setValue(value)
        box.setAccessibleName(f"Seconds {suffix.removeprefix(' s ')}")
        return box

    def _set_budget(self, seconds: float) -> None:
        self._reproductions.budget_s = seconds

    def _set_limit(self, seconds: float) -> None:
        self._reproductions.limit_s = seconds

    def _make_copy(self) -> QToolButton:
        button = QToolButton()
        button.setText("Copy table")
        button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        menu = QMenu(button)
        menu.addAction("As Markdown", lambda: self.copy_table(".md"))
        menu.addAction("As CSV", lambda: self.copy_table(".csv"))
        button.setMenu(menu)
        return button

    def _make_head(self) -> QVBoxLayout:
        head = _widgets.tight(QVBoxLayout(), 6)
        head.setContentsMargins(12, 8, 12, 8)
        head.addWidget(self.headline)
        head.addLayout(WrappedRow(self.run_all, self.stop, self.budget, self.limit, self.copy))
        head.addWidget(self.status)
        return head

    # The list

    def _rebuild(self, rows: list[Row]) -> None:
        """Make the rows of the claims, document by document."""
        _widgets.clear(self._body)
        self.rows, self.run, self._counts = {}, {}, {}
        self._documents = {name: self._make_document(name) for name in _documents_of(rows)}
        self._headings = [_widgets.heading(text) for text in _HEADINGS]
        for heading in self._headings:
            heading.setWordWrap(True)
        above = None
        for row in rows:
            name = (row.document, row.experiment, row.claim)
            self.rows[row.key] = ClaimRow(row, self._measure(row), repeated=name == above)
            above = name
        self._grid = QGridLayout()
        self._grid.setHorizontalSpacing(8)
        self._grid.setVerticalSpacing(4)
        for column, stretch in enumerate(STRETCH):
            self._grid.setColumnStretch(column, stretch)
        self._body.addLayout(self._grid)
        self._body.addStretch(1)
        self._narrow = None
        self._arrange()

    def _arrange(self) -> None:
        """Lay out the list for this width and type: a narrow panel has more lines."""
        narrow = self.width() < fonts.in_type(WIDE_PX, self.font())
        if narrow == self._narrow or self._grid is None:
            return
        self._narrow = narrow
        for heading, (column, count) in zip(
            self._headings, NARROW if narrow else WIDE, strict=True
        ):
            self._grid.addWidget(heading, 0, column, 1, count)
        line = 1
        for document, widget in self._documents.items():
            self._grid.addWidget(widget, line, 0, 1, COLUMNS)
            line += 1
            for row in (row for key, row in self.rows.items() if key[0] == document):
                row.arrange(self._grid, line, narrow=narrow)
                line += LINES

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Use more or fewer lines for a claim."""
        super().resizeEvent(event)
        self._arrange()

    def _make_document(self, name: str) -> QWidget:
        known = documents().get(name)
        line = QWidget()
        row = _widgets.tight(QHBoxLayout(line))
        row.setContentsMargins(0, 10, 0, 2)
        title = QLabel(name if known is None else known.title)
        title.setFont(fonts.heading())
        title.setWordWrap(True)
        self._counts[name] = _widgets.note()
        texts = _widgets.tight(QVBoxLayout(), 2)
        texts.addWidget(title)
        texts.addWidget(self._counts[name])
        row.addLayout(texts, 1)
        if known is not None:
            self.run[name] = _widgets.compact("Measure all of it")
            self.run[name].clicked.connect(lambda: self._reproductions.measure(name))
            row.addWidget(self.run[name])
        return line

    def _measure(self, row: Row):  # type: ignore[no-untyped-def]
        return lambda: self._reproductions.measure(row.document, row.experiment)

    def showEvent(self, event: QShowEvent) -> None:
        """Show the shown session's results."""
        super().showEvent(event)
        QTimer.singleShot(0, self, self._lead)

    def _show_session(self) -> None:
        self._leads = True
        self._show()
        QTimer.singleShot(0, self, self._lead)

    def _lead(self) -> None:
        """Scroll to the first document with a result, once for each session."""
        if not (self._leads and self.isVisible()):
            return
        self._leads = False
        rows = self._reproductions.rows()
        first = next((row.document for row in rows if row.final), None)
        heading = self._counts[first].parentWidget() if first is not None else None
        body = self._area.widget()
        if body.layout() is not None:
            body.layout().activate()
        top = 0 if heading is None else heading.mapTo(body, QPoint()).y()
        self._area.verticalScrollBar().setValue(top)

    def _show_soon(self) -> None:
        if not self._timer.isActive():
            self._timer.start(PERIOD_MS)

    def _show(self) -> None:
        reproductions, theme = self._reproductions, self._theme.current
        rows = reproductions.rows()
        if list(self.rows) != [row.key for row in rows]:
            self._rebuild(rows)
        running, why_not = reproductions.measuring and self._session.live, reproductions.why_not()
        for row in rows:
            titled_row = replace(row, reason=self._session.titled(row.reason))
            self.rows[row.key].show(titled_row, why_not, theme)
        for name, label in self._counts.items():
            of_it = [row for row in rows if row.document == name]
            label.setText(claims.count(of_it) if any(row.final for row in of_it) else "")
        for button in (self.run_all, *self.run.values()):
            button.setEnabled(not why_not)
            button.setToolTip(why_not)
        self.stop.setVisible(reproductions.measuring)
        status = self._progress() if reproductions.measuring else why_not
        self.status.setText(status)
        self.status.setVisible(bool(status))
        self.headline.setText(self._headline(rows, running))
        self.copy.setIcon(icon("copy", theme, "muted"))
        measured = any(row.final for row in rows)
        self.copy.setEnabled(measured)
        self.copy.setToolTip("" if measured else "No claim has been measured yet.")

    def _headline(self, rows: list[Row], running: bool) -> str:
        if running:
            return f"Measuring {self._reproductions.doing}"
        known = [row for row in rows if row.final]
        if not known:
            return f"{counted(len(rows), 'claim')}, not measured yet"
        return claims.count(known)

    def _progress(self) -> str:
        """Return what the runner does for the claims."""
        if self._run.progress is not None:
            return f"{self._run.progress.task.capitalize()}: {self._run.progress.text}"
        return self._run.text


def _documents_of(rows: list[Row]) -> list[str]:
    """Return the names of the documents, in the order of their claims."""
    return list(dict.fromkeys(row.document for row in rows))
