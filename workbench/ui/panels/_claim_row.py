"""The row of a claim: result, icon, the claim, the measured value, the reason."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QLabel, QSizePolicy

from sessions.plain_text import capitalized, one_line
from sessions.studies import claims
from sessions.studies.claims import Row
from workbench.theming import fonts
from workbench.theming.theme import Theme
from workbench.ui.panels import _widgets

COLUMNS = 6  # mark, word, claim, what the document says, what was measured, button
STRETCH = (0, 0, 5, 4, 5, 0)
WORD_WIDTH, TEXT_WIDTH = 96, 60  # pixels of the result; least pixels of a text
MARKS = {  # by result: the word, its icon and its colour
    claims.HOLDS: ("Holds", "effective", "good"),
    claims.FAILS: ("Does not hold", "error", "bad"),
    claims.UNDECIDED: ("Undecided", "unknown", "warning"),
    claims.NOT_MEASURED: ("Not measured", "warning", "warning"),
    claims.NOT_HERE: ("Not here", "absent", "muted"),
    claims.MEASURING: ("Measuring", "live", "accent"),
    claims.WAITING: ("Waiting", "pending", "muted"),
    "": ("Not yet", "pending", "muted"),
}
_TOP = Qt.AlignmentFlag.AlignTop


class ClaimRow:
    """The widgets of one claim, in two lines of a grid that it shares with the others."""

    def __init__(self, grid: QGridLayout, line: int, row: Row, measure: Callable[[], None]) -> None:
        self.mark, self.word = _widgets.Mark(), QLabel()
        fonts.fix_width(self.word, WORD_WIDTH)
        self.claim = _wrapped(capitalized(row.claim))
        self.claim.setToolTip(f"{row.row}: {row.how}")
        self.says, self.measured = _wrapped(row.says), _wrapped("")
        self.says.setProperty("muted", True)
        self.measured.setFont(fonts.numbers())
        self.reason = _widgets.note()
        self.button = _widgets.compact("Measure")
        self.button.setAccessibleName(f"Measure {row.document}: {row.experiment}")
        self.button.clicked.connect(measure)
        self._experiment = row.experiment
        self._shown: object = None
        cells = (self.mark, self.word, self.claim, self.says, self.measured, self.button)
        for column, widget in enumerate(cells):
            grid.addWidget(widget, line, column, _TOP)
        grid.addWidget(self.reason, line + 1, 2, 1, COLUMNS - 2)

    def show(self, row: Row, why_not: str, theme: Theme) -> None:
        """Show the claim's current state; ``why_not``: why it cannot be measured now."""
        shown = (row, why_not, theme.name)
        if shown == self._shown:
            return
        self._shown = shown
        word, name, role = MARKS.get(row.result, (one_line(row.result, 40), "unknown", "muted"))
        self.word.setText(word)
        tone = role if role in ("good", "bad", "warning", "accent") else ""
        _widgets.set_tone(self.word, tone)
        self.mark.show_icon(name, theme, role)
        measured = claims.measured_text(row)
        going_on = row.result == claims.MEASURING
        self.measured.setText(f"{measured}, so far" if measured and going_on else measured or "–")
        reason = capitalized(row.reason)
        self.reason.setText(reason)
        self.reason.setVisible(bool(reason))
        self.button.setEnabled(not why_not)
        self.button.setToolTip(why_not or f"Run the experiment {self._experiment!r}: {row.how}")


def _wrapped(text: str) -> QLabel:
    label = QLabel(text)
    label.setWordWrap(True)
    fonts.follow(label, lambda: label.setMinimumWidth(fonts.in_type(TEXT_WIDTH, label.font())))
    label.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Minimum)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    return label
