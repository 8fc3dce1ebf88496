"""The validation checklist: six checks, each with a word, a mark, its evidence and its lines."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QHBoxLayout,
    QLabel,
    QSizePolicy,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from sessions.plain_text import capitalized, one_line
from sessions.studies import checklist
from sessions.studies.checklist import Row
from workbench.theming import fonts
from workbench.ui.controllers.checklists import Checklists
from workbench.ui.panels import _widgets
from workbench.ui.panels._editors import NoWheelDoubleSpinBox
from workbench.ui.panels._throttle import ThrottledCall
from workbench.ui.panels._wrapped_row import WrappedRow
from workbench.ui.panels.empty import Empty
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel

WORD_WIDTH = 112
_MARKS = {  # by status: the word, its icon and its colour
    checklist.PASS: ("Pass", "effective", "good"),
    checklist.FAIL: ("Fail", "error", "bad"),
    checklist.UNDECIDED: ("Undecided", "unknown", "warning"),
    checklist.NOT_CHECKED: ("Not checked", "unknown", "warning"),
    checklist.NOT_APPLICABLE: ("Not applicable", "absent", "muted"),
    checklist.WAITING: ("Not done", "pending", "muted"),
}
_BUTTON = "Check this configuration"


class ChecklistPanel(QWidget):
    """The newest checklist of the shown session."""

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        checklists: Checklists,
        theme: ThemeModel,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._checklists, self._theme = checklists, theme
        self.headline = _widgets.title()
        self.subject = _widgets.note()
        self.button = _widgets.button(_BUTTON)
        self.button.clicked.connect(checklists.check)
        self.expected = self._make_expected()
        self.reason = _widgets.note()
        self._shown: object = None
        self._longer: float | None = None  # the budget that should decide the undecided checks
        self._pages = QStackedWidget()
        self.empty = Empty(
            theme,
            "checklist",
            "Nothing checked yet",
            "Six checks show whether a configuration can be relied on: right numbers, no wait for "
            "the device, a fixed graph, steady memory, the speed-up, and other batch sizes. Each "
            "passes, fails or does not apply, with its evidence.",
        )
        self.first = self.empty.offer(_BUTTON, checklists.check)
        self._pages.addWidget(self.empty)
        self._pages.addWidget(self._make_body())
        layout = _widgets.tight(QVBoxLayout(self), 0)
        layout.addWidget(self._pages)
        self._throttled = ThrottledCall(self._show, self)
        for changed in (
            session.studiesChanged,
            run.stateChanged,
            configuration.availabilityChanged,
        ):
            changed.connect(self._throttled.schedule)
        session.sessionChanged.connect(self._show)
        theme.changed.connect(self._show)
        self._show()

    def _make_expected(self) -> NoWheelDoubleSpinBox:
        box = NoWheelDoubleSpinBox()
        box.setRange(0, 1000)
        box.setDecimals(2)
        box.setSingleStep(0.25)
        box.setPrefix("at least ")
        box.setSuffix(" ×")
        box.setSpecialValueText("not slower")
        box.setToolTip("The speed-up that is expected over everything switched off")
        box.setAccessibleName("Expected speed-up")
        box.valueChanged.connect(self._set_expected)
        return box

    def _set_expected(self, value: float) -> None:
        self._checklists.expect_speedup = value

    def _make_body(self) -> QWidget:
        expected = _widgets.named("Expected", self.expected)
        expected.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        buttons = WrappedRow(self.button, expected)
        host = QWidget()
        self._rows = _widgets.column(host)
        body = _widgets.surface()
        column = _widgets.tight(QVBoxLayout(body), 0)
        lines = (self.headline, self.subject, buttons, self.reason)
        column.addLayout(_widgets.head(*lines, below=4))
        column.addWidget(host, 1)
        return body

    def _show(self) -> None:
        checklists = self._checklists
        why_not = checklists.why_not()
        for button in (self.button, self.first):
            _widgets.allow(button, why_not)
        self.reason.setText(why_not)
        self.reason.setVisible(bool(why_not))
        study = checklists.newest
        self._pages.setCurrentIndex(0 if study is None else 1)
        if study is None:
            return
        rows = checklist.rows(study)
        checking = checklists.checking
        self._longer = checklists.longer_s
        shown = (study.start_s, study.title, rows, checking, why_not, self._theme.current.name)
        if shown == self._shown:
            return
        self._shown = shown
        self.headline.setText(
            f"Checking: {checklist.headline(study)}" if checking else checklist.headline(study)
        )
        _widgets.set_tone(self.headline, "bad" if checklist.failed(study) else "")
        self.subject.setText(study.title)
        _widgets.clear(self._rows)
        for row in rows:
            is_current = checking and row is next(r for r in rows if r.status == checklist.WAITING)
            self._rows.addWidget(self._make_row(row, is_current))
        self._rows.addStretch(1)

    def _make_row(self, row: Row, is_current: bool) -> QWidget:
        unknown = (one_line(row.status, 40), "unknown", "muted")  # a status of another version
        mark_of = ("Checking", "live", "accent") if is_current else _MARKS.get(row.status, unknown)
        word, name, role = mark_of
        row_widget = QWidget()
        row_widget.setObjectName(f"check-{row.name}")
        outer = _widgets.tight(QHBoxLayout(row_widget), 8)
        state = QLabel(word)
        state.setProperty("tone", role if role in ("good", "warning", "bad") else "")
        state.setProperty("muted", role == "muted")
        mark = _widgets.Mark()
        mark.show_icon(name, self._theme.current, role)
        fonts.fix_width(state, WORD_WIDTH)
        text = _widgets.tight(QVBoxLayout(), 2)
        text.addWidget(_widgets.WrappedText(row.title))
        if row.evidence:
            text.addWidget(_widgets.note(capitalized(row.evidence)))
        for line in row.lines:
            shown = _widgets.note(line)
            shown.setFont(fonts.small(fonts.fixed()))
            text.addWidget(shown)
        if row.status == checklist.UNDECIDED and self._longer is not None:
            longer = _widgets.button(f"Check again with {self._longer:,.0f} s")
            longer.clicked.connect(self._checklists.check_longer)
            _widgets.allow(longer, self._checklists.why_not())
            text.addWidget(longer, 0, Qt.AlignmentFlag.AlignLeft)
        outer.addWidget(mark, 0, Qt.AlignmentFlag.AlignTop)
        outer.addWidget(state, 0, Qt.AlignmentFlag.AlignTop)
        outer.addLayout(text, 1)
        return row_widget
