"""The comparisons of a session, the newest last; verdicts are corrected for their number."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QIcon, QPixmap
from PySide6.QtWidgets import QSizePolicy, QTableWidgetItem, QWidget

from sessions.model import PairedComparison
from sessions.verdicts.verdict_tables import verdicts_table
from workbench.plots._arms import apart
from workbench.theming import fonts
from workbench.theming.icons import icon
from workbench.ui.panels import _verdict_lines as verdict_lines
from workbench.ui.panels._names_share import NamesShare
from workbench.ui.panels._table import LEFT, RIGHT, PlainTable, with_interval
from workbench.ui.state.theme import ThemeModel

SHOWN = 4  # rows; one scrolls to the others
MOST_VERDICTS = 200  # rows of the table; each takes a third of a millisecond
_LEAST = 2
_BLANK_PX = 64  # at least as large as an icon
_WIDE = ("A", "B")  # columns that share the room; the others take what they need
_OPTIONAL = ("predicted", "uncorrected", "pairs", "p (Holm)")  # hidden where there is no room
_MARKED = "verdict"
SHOWN_HERE = "shown above"
OPENS = "double-click, or press Enter, to show it above"


class VerdictsTable(PlainTable):
    """Table of comparisons; a double click or Enter opens a row. Hidden for a single comparison."""

    def __init__(self, theme: ThemeModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._shown: object = None
        self.first = 0  # index of the first row's comparison in the session
        self._names = NamesShare(self)
        blank = QPixmap(_BLANK_PX, _BLANK_PX)
        blank.fill(Qt.GlobalColor.transparent)
        self._blank = QIcon(blank)  # aligns rows without an icon
        self.horizontalHeader().setStretchLastSection(False)
        self.setAccessibleName("Verdicts; a double click or Enter shows one")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Maximum)
        self.hide()

    def show_comparisons(self, comparisons: Sequence[PairedComparison], shown: int) -> None:
        """Fill the rows with the newest comparisons, and mark the one that is shown above.

        ``comparisons`` are those of the session, without the correction.
        """
        self.first = max(0, len(comparisons) - MOST_VERDICTS)
        shown = shown % max(1, len(comparisons)) - self.first
        table = verdicts_table(comparisons, MOST_VERDICTS)
        table = with_interval(table, "ratio", "ratio from", "ratio to")
        filled = (self._theme.current.name, table.rows, shown)
        if filled == self._shown:
            return
        self._shown = filled
        self.show_table(table)
        for column in range(len(table.columns)):
            numbers = not any(isinstance(row[column], str) for row in table.rows)
            heading = self.horizontalHeaderItem(column)
            assert heading is not None
            heading.setTextAlignment(RIGHT if numbers else LEFT)
        marked = table.column(_MARKED)
        with self.filling():
            for row, comparison in enumerate(comparisons[self.first :]):
                item = self.item(row, marked)
                assert item is not None
                self._mark(item, comparison)
                first = self.item(row, 0)
                assert first is not None
                if row == shown:
                    first.setIcon(icon("live", self._theme.current, "accent"))
                else:
                    first.setIcon(self._blank)
                sides = (first, self.item(row, 1))
                labels = (comparison.arms[0], comparison.arms[-1])
                for item, text, label in zip(sides, apart(*labels), labels, strict=True):
                    assert item is not None
                    item.setText(text)
                    item.setToolTip(f"{label}: {SHOWN_HERE if row == shown else OPENS}")
        self.updateGeometry()
        names = [column.name for column in table.columns]
        optional = [names.index(name) for name in _OPTIONAL if name in names]
        self._names.set_columns([names.index(name) for name in _WIDE], optional)
        if shown >= 0:
            self.scrollToItem(self.item(shown, 0))
        self.setVisible(len(comparisons) > 1)

    def sizeHint(self) -> QSize:
        """Return the height of the rows, up to ``SHOWN`` of them."""
        return QSize(super().sizeHint().width(), self._height(SHOWN))

    def minimumSizeHint(self) -> QSize:
        """Return the height of a few rows: a low window stays usable."""
        return QSize(super().minimumSizeHint().width(), self._height(_LEAST))

    def _height(self, most: int) -> int:
        rows = min(most, self.rowCount())
        return rows * fonts.row_px(self.font()) + self.horizontalHeader().sizeHint().height() + 4

    def _mark(self, item: QTableWidgetItem, comparison: PairedComparison) -> None:
        verdict = item.text()  # corrected for the number of comparisons
        tone = verdict_lines.tone(comparison, verdict)
        verdict_lines.dress(
            item, verdict_lines.icon_of(comparison, verdict), tone, self._theme.current
        )
