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
LINES = 3  # grid lines for a claim: result, texts, reason; a wide panel joins the first two
# First column and number of columns of the texts: claim, what the document says, measured.
WIDE, NARROW = ((2, 1), (3, 1), (4, 1)), ((1, 2), (3, 1), (4, 2))
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
    """The widgets of one claim, in ``LINES`` lines of a grid that it shares with the others.

    ``repeated``: the claim above has the same name, which is not shown a second time.
    """

    def __init__(self, row: Row, measure: Callable[[], None], *, repeated: bool) -> None:
        self.mark, self.word = _widgets.Mark(), QLabel()
        fonts.fix_width(self.word, WORD_WIDTH)
        self.claim = _wrapped("" if repeated else capitalized(row.claim))
        self.claim.setAccessibleName(capitalized(row.claim))
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

    def arrange(self, grid: QGridLayout, line: int, *, narrow: bool) -> None:
        """Lay out the widgets from a line of the grid on; a narrow panel has two lines of texts."""
        grid.addWidget(self.mark, line, 0, _TOP)
        grid.addWidget(self.word, line, 1, 1, 2 if narrow else 1, _TOP)
        grid.addWidget(self.button, line, COLUMNS - 1, _TOP | Qt.AlignmentFlag.AlignRight)
        texts = (self.claim, self.says, self.measured)
        for text, (column, count) in zip(texts, NARROW if narrow else WIDE, strict=True):
            grid.addWidget(text, line + narrow, column, 1, count, _TOP)
        first = 1 if narrow else 2
        grid.addWidget(self.reason, line + 2, first, 1, COLUMNS - first)

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
    label = _widgets.WrappedText(text)
    fonts.follow(label, lambda: label.setMinimumWidth(fonts.in_type(TEXT_WIDTH, label.font())))
    label.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Minimum)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    return label
