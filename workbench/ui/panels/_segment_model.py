"""The segments' table as Qt reads it: fewer, denser columns than the table that is copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, QSize, Qt
from PySide6.QtGui import QColor, QFontMetrics, QIcon, QPainter, QPixmap
from PySide6.QtWidgets import QWidget

from sessions import numerics, session_log
from sessions.ceilings import ceiling_words
from sessions.numbers import STEP_TIME, counted
from sessions.plain_text import wrapped
from sessions.tables import MISSING, OWN, PEAKS, Table, text
from sessions.verdicts.ratios import UNPAIRED
from sessions.verdicts.work import DIFFERENT_MODELS, INVALID, OTHER_WORK
from workbench.theming import fonts
from workbench.theming.icons import icon
from workbench.theming.theme import Theme, series_color
from workbench.titles import Titles
from workbench.ui.panels._own_model import file_title
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel

Index = QModelIndex | QPersistentModelIndex
SWATCH, _GAP = 10, 3  # side of a square, and the room beside it
DIFFERS = "Differs from the baseline"
RATIO = STEP_TIME
SHOWN = {"steady steps": "Steps", "median": "Median", "p95": "p95", "ratio": RATIO}
_PEAK_TITLES = dict(zip(PEAKS, ("Peak", "Resident"), strict=True))
SHARE = "MFU"
NUMBERS = "Numbers"
MEASURED = (
    *SHOWN,
    "ratio from",
    "ratio to",
    "verdict",
    *PEAKS,
    OWN,
    SHARE,
    NUMBERS.lower(),
    "note",
)
AFTER = (*PEAKS, OWN, SHARE, NUMBERS.lower())  # the last columns, if the table has them
OPTIONAL = ("p95", "Own", "Steps", SHARE)  # headings' first words; a narrow window hides them
RESERVE = (*_PEAK_TITLES.values(), NUMBERS, "Median")  # a narrower one hides these, too
INTERVAL = "95 % interval"
_INTERVAL_WIDEST = "0.9876 to 0.9999"  # a reason that is longer is elided: DIFFERS needs the room
OF_RATIO = (RATIO, INTERVAL)  # red where the numbers are wrong, however fast
_TONES = {"FASTER": "good", "SLOWER": "bad", UNPAIRED: "muted", INVALID: "warning"}
UNPAIRED_TIP = (
    "Unpaired: the two ran one after the other, so the machine may have changed. Click to "
    "measure a verdict: both run in alternating blocks."
)
_MARKS = {"right": ("effective", "good"), numerics.WRONG: ("error", "bad")}  # icon, colour
_UNKNOWN = ("unknown", "warning")
AS_BASELINE = "as the baseline"
APART = " · "  # titles have commas of their own


@dataclass(frozen=True)
class Shown:
    """Content of the view: headings, which columns are numbers, and the cells as text."""

    headings: Sequence[str] = ()
    numeric: Sequence[bool] = ()
    cells: Sequence[Sequence[str]] = ()
    settings: Sequence[str] = ()  # differing settings, named as on the command line
    notes: Sequence[str] = ()  # the basis of the interval, or why there is none
    verdicts: Sequence[str] = ()  # by row, the verdict of its ``SegmentRatio``

    def mark(self, row: int) -> tuple[str, str]:
        """Return icon and colour for a segment's numbers; empty if nothing is known of them."""
        word = self.cells[row][self.headings.index(NUMBERS)] if NUMBERS in self.headings else ""
        return _MARKS.get(word, _UNKNOWN if word == numerics.MARKS[None] else ("", ""))

    def tone(self, row: int, column: int) -> str:
        """Return the colour of a cell; empty for the usual one."""
        heading, (_, role) = self.headings[column], self.mark(row)
        if heading == NUMBERS or (role == "bad" and heading in OF_RATIO):
            return role
        return _TONES.get(self.verdicts[row], "") if heading in OF_RATIO else ""

    def is_offer(self, row: int, column: int) -> bool:
        """Return True if the cell offers a verdict instead of an unpaired ratio."""
        is_other = self.cells[row][self.headings.index(DIFFERS)] != AS_BASELINE
        return is_other and self.headings[column] == INTERVAL and self.verdicts[row] == UNPAIRED


@dataclass(frozen=True)
class Group:
    """A row that stands for the segments of one study."""

    order: int
    title: str
    segments: range
    expanded: bool

    def cells(self, columns: int) -> list[str]:
        """Return the row's cells: the title of the study and the number of its segments."""
        mark = "▾" if self.expanded else "▸"
        count = len(self.segments)
        words = counted(count, "segment")
        return [mark, f"{self.title} ({words})", *[""] * (columns - 2)]


Row = int | Group  # a segment's index, or a group


class SegmentModel(QAbstractTableModel):
    """Rows of segments with their colours in the plots; segments of a study are grouped."""

    def __init__(self, session: SessionModel, theme: ThemeModel, parent: QWidget) -> None:
        super().__init__(parent)
        self._session, self._theme = session, theme
        self._shown = Shown()
        self._expanded: set[int] = set()  # orders whose segments are listed
        self.rows: list[Row] = []
        self.table: Table | None = None

    def show_table(self, table: Table | None) -> None:
        """Take another table; the selection survives when only the numbers changed."""
        shown = (
            Shown()
            if table is None
            else condensed(table, self._session.baseline, self._session.titles)
        )
        if table is None:  # another session
            self._expanded.clear()
        rows = self._grouped(len(shown.cells))
        same = shown.headings == self._shown.headings and rows == self.rows
        if not same:
            self.beginResetModel()
        self.table, self._shown, self.rows = table, shown, rows
        if not same:
            self.endResetModel()
        else:
            self.redraw()

    def _grouped(self, count: int) -> list[Row]:
        """Return the rows of the first segments: a study's follow its group's if it is expanded."""
        session = self._session.shown
        orders = session_log.study_segments(session)
        rows: list[Row] = []
        for index in range(count):
            order = orders.get(index)
            if order is None:
                rows.append(index)
                continue
            if index == 0 or orders.get(index - 1) != order:
                members = [member.index for member in session_log.segments_of(session, order)]
                title = session_log.order_title(session, session.orders[order])
                expanded = order in self._expanded
                spanned = range(members[0], min(count, members[-1] + 1))
                rows.append(Group(order, self._session.titled(title), spanned, expanded))
            if order in self._expanded:
                rows.append(index)
        return rows

    def segment_at(self, row: int) -> int | None:
        """Return the segment of a row; None for a group."""
        item = self.rows[row] if 0 <= row < len(self.rows) else None
        return item if isinstance(item, int) else None

    def row_of(self, segment: int) -> int | None:
        """Return the row of a segment, or of the group that hides it."""
        for row, item in enumerate(self.rows):
            hides = isinstance(item, Group) and not item.expanded and segment in item.segments
            if item == segment or hides:
                return row
        return None

    def toggle_group(self, row: int) -> bool:
        """Expand or collapse a group; return False if the row is a segment's."""
        item = self.rows[row]
        if not isinstance(item, Group):
            return False
        self._expanded ^= {item.order}
        self.show_table(self.table)
        return True

    def redraw(self) -> None:
        """Draw every cell again."""
        if self.rows:
            last = self.index(self.rowCount() - 1, self.columnCount() - 1)
            self.dataChanged.emit(self.index(0, 0), last)

    def rowCount(self, parent: Index | None = None) -> int:
        """Return the number of rows: segments and groups."""
        return 0 if parent is not None and parent.isValid() else len(self.rows)

    def columnCount(self, parent: Index | None = None) -> int:
        """Return the number of columns shown."""
        return 0 if parent is not None and parent.isValid() else len(self._shown.headings)

    def headerData(
        self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ) -> Any:
        """Return a column's name and unit, aligned as its cells."""
        if orientation != Qt.Orientation.Horizontal:
            return None
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return self._shown.headings[section]
            case Qt.ItemDataRole.ToolTipRole:  # a narrow window elides headings
                heading = self._shown.headings[section]
                return self._ceiling() if heading.startswith(SHARE) else heading
            case Qt.ItemDataRole.TextAlignmentRole:
                return _alignment(self._shown.numeric[section])
        return None

    def columns_named(self, words: Sequence[str]) -> list[int]:
        """Return the columns whose headings begin with these words, in their order."""
        names = [heading.split()[0] for heading in self._shown.headings]
        return [names.index(name) for name in words if name in names]

    def _hidden_text(self, row: int) -> str:
        """Return the cells of the columns that a narrow window may hide."""
        headings, cells = self._shown.headings, self._shown.cells[row]
        columns = self.columns_named((*OPTIONAL, *RESERVE))
        pairs = (f"{headings[at]}: {cells[at]}" for at in columns)
        return ", ".join(pairs)

    def is_offer(self, index: Index) -> bool:
        """Return True if a click on this cell asks for a verdict."""
        segment = self.segment_at(index.row())
        return segment is not None and self._shown.is_offer(segment, index.column())

    def _ceiling(self) -> str:
        """Return what the model FLOPs utilization refers to."""
        segments = self._session.shown.segments
        ceilings = dict.fromkeys(ceiling_words(segment) for segment in segments)
        return f"Model FLOPs utilization: {'; '.join(ceilings)}"

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        """Return the cell's text, alignment, font or swatch."""
        item, column = self.rows[index.row()], index.column()
        if isinstance(item, Group):
            return self._group_data(item, column, role)
        row = item
        match role:
            case Qt.ItemDataRole.ToolTipRole if self._shown.headings[column] == NUMBERS:
                return wrapped(numerics.text(self._session.shown.segments[row].ledger))
            case Qt.ItemDataRole.ToolTipRole if self._shown.headings[column] == DIFFERS:
                words, settings = self._shown.cells[row][column], self._shown.settings[row]
                lines = dict.fromkeys((words, settings, self._hidden_text(row)))
                return wrapped("\n".join(filter(None, lines)))
            case Qt.ItemDataRole.ToolTipRole if self.is_offer(index):
                return UNPAIRED_TIP
            case Qt.ItemDataRole.ToolTipRole if self._shown.headings[column] in OF_RATIO:
                reasons = (self._shown.verdicts[row], self._shown.notes[row])
                return "; ".join(filter(None, reasons)) or self._shown.cells[row][column]
            case Qt.ItemDataRole.ToolTipRole:
                return wrapped(self._shown.cells[row][column])
            case Qt.ItemDataRole.DisplayRole:
                return self._shown.cells[row][column]
            case Qt.ItemDataRole.ForegroundRole if tone := self._shown.tone(row, column):
                return QColor(getattr(self._theme.current, tone))
            case Qt.ItemDataRole.TextAlignmentRole:
                return _alignment(self._shown.numeric[column])
            case Qt.ItemDataRole.SizeHintRole if self._shown.headings[column] == INTERVAL:
                return _at_most(self._shown.cells[row][column], _INTERVAL_WIDEST)
            case Qt.ItemDataRole.FontRole:
                font = fonts.numbers()
                font.setBold(row == self._session.baseline)
                font.setUnderline(self.is_offer(index))
                return font
            case Qt.ItemDataRole.DecorationRole if column == 0:
                return swatch(row, self._theme.current)
            case Qt.ItemDataRole.DecorationRole if self._shown.headings[column] == NUMBERS:
                mark, color = self._shown.mark(row)
                return icon(mark, self._theme.current, color) if mark else None
        return None

    def _group_data(self, group: Group, column: int, role: int) -> Any:
        """Return the content of a group's cell: its title, in bold."""
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return group.cells(len(self._shown.headings))[column]
            case Qt.ItemDataRole.ToolTipRole:
                return "Click to collapse" if group.expanded else "Click to list its segments"
            case Qt.ItemDataRole.FontRole:
                return fonts.heading()
        return None


def condensed(table: Table, baseline: int, titles: Titles) -> Shown:
    """Return the table with one column for all differences, and one for the interval."""
    names = [column.name for column in table.columns]
    position = {name: names.index(name) for name in MEASURED if name in names}
    different = [index for index in range(1, len(names)) if index not in position.values()]
    base = table.rows[baseline] if baseline < len(table.rows) else None

    def differs(number: int, row: Sequence[Any], changed_text: Callable[[str, str], str]) -> str:
        if number == baseline:
            return "baseline"
        changed = [index for index in different if base is None or row[index] != base[index]]
        parts = _without_hash(
            {names[index]: changed_text(names[index], text(row[index])) for index in changed},
            {names[index]: text(row[index]) for index in changed},
        )
        return APART.join(parts) or AS_BASELINE

    def interval(number: int, row: Sequence[Any]) -> str:
        low, high, verdict = (
            text(row[position[end]]) for end in ("ratio from", "ratio to", "verdict")
        )
        # Short, for DIFFERS needs the room; and first what an elided cell must still say.
        if verdict in (UNPAIRED, DIFFERENT_MODELS, OTHER_WORK, INVALID):
            return verdict
        if number == baseline:
            return MISSING
        if MISSING not in (low, high):
            return f"{low} to {high}"
        note = str(row[position["note"]] or "") if "note" in position else ""
        return note.partition(":")[0].removeprefix("it has ") or MISSING

    cells = [
        [
            str(number),
            differs(number, row, titles.setting),
            *(text(row[position[name]]) for name in SHOWN),
            interval(number, row),
            *(text(row[position[name]]) for name in AFTER if name in position),
        ]
        for number, row in enumerate(table.rows)
    ]
    (peak,) = (name for name in PEAKS if name in position)
    units = [table.columns[position[name]].unit.replace(STEP_TIME, "") for name in (*SHOWN, peak)]
    numbers = [
        f"{title} {unit}".strip()
        for title, unit in zip((*SHOWN.values(), _PEAK_TITLES[peak]), units, strict=True)
    ]
    headings = ["#", DIFFERS, *numbers[:-1], INTERVAL, numbers[-1]]
    headings += [f"Own {table.columns[position[OWN]].unit}"] if OWN in position else []
    headings += [f"{SHARE} %"] if SHARE in position else []
    headings += [NUMBERS] if NUMBERS.lower() in position else []
    numeric = [index > 1 and heading != NUMBERS for index, heading in enumerate(headings)]
    notes = [str(row[position["note"]] or "") if "note" in position else "" for row in table.rows]
    tips = [differs(number, row, _as_asked) for number, row in enumerate(table.rows)]
    verdicts = [str(row[position["verdict"]] or "") for row in table.rows]
    return Shown(headings, numeric, cells, tips, notes, verdicts)


def _without_hash(parts: dict[str, str], values: dict[str, str]) -> list[str]:
    """Return the differing parts; a user's model is named by its file, and never by its hash."""
    source, digest = "model.source", "model.sha256"
    if source in parts:
        parts[source] = f"File: {file_title(values[source])}"
        parts.pop(digest, None)
    elif digest in parts:
        parts[digest] = "File: edited"
    return list(parts.values())


def _at_most(text: str, widest: str) -> QSize | None:
    """Return the size of the widest text if a text is wider, else None."""
    metrics = QFontMetrics(fonts.numbers())
    room = metrics.horizontalAdvance(widest)
    return QSize(room, metrics.height()) if metrics.horizontalAdvance(text) > room else None


def _as_asked(name: str, value: str) -> str:
    """Return a setting as files and commands write it."""
    return f"{name.rpartition('.')[2]}={value}"


def swatch(index: int, theme: Theme) -> QIcon:
    """Return a small square in the segment's colour in the plots."""
    pixmap = QPixmap((SWATCH + _GAP) * 2, SWATCH * 2)
    pixmap.setDevicePixelRatio(2)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(QColor(series_color(theme, index)))
    painter.drawRoundedRect(0, 0, SWATCH, SWATCH, 2, 2)
    painter.end()
    return QIcon(pixmap)


def _alignment(numeric: bool) -> Qt.AlignmentFlag:
    side = Qt.AlignmentFlag.AlignRight if numeric else Qt.AlignmentFlag.AlignLeft
    return side | Qt.AlignmentFlag.AlignVCenter
