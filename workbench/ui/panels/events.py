"""The log of toggles, notes, warnings and errors, with a filter; a click shows the moment."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import (
    QAbstractTableModel,
    QModelIndex,
    QPersistentModelIndex,
    QSortFilterProxyModel,
    Qt,
)
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHBoxLayout,
    QHeaderView,
    QLineEdit,
    QStackedWidget,
    QTableView,
    QVBoxLayout,
    QWidget,
)

from sessions import session_log
from sessions.model import Event
from sessions.plain_text import capitalized, one_line, wrapped
from workbench.charts.time_axis import shared_axis
from workbench.theming import fonts
from workbench.theming.icons import icon
from workbench.ui.menus.option_picker import OptionPicker
from workbench.ui.panels import _widgets
from workbench.ui.panels.empty import Empty
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel

Index = QModelIndex | QPersistentModelIndex
KIND_ICON = {  # by an event's kind: icon and colour
    "toggle": ("toggle", "accent"),
    "note": ("note", "text"),
    "bookmark": ("bookmark", "accent"),
    "warning": ("warning", "warning"),
    "error": ("error", "bad"),
    "info": ("info", "muted"),
    session_log.RUN: ("run", "good"),
    session_log.VERDICT: ("verdict", "accent"),
    session_log.STUDY: ("attribution", "accent"),
}
FILTERS = [
    ("all", "All"),
    ("toggle", "Toggles"),
    ("note", "Notes and bookmarks"),
    ("measured", "Runs, verdicts, studies"),
    ("problem", "Warnings and errors"),
]
_GROUPS = {  # kinds of entries by filter, where they are several
    "note": ("note", "bookmark"),
    "measured": (session_log.RUN, session_log.VERDICT, session_log.STUDY),
    "problem": ("warning", "error"),
}
_OF_RUNNER = ("info", "warning", "error")  # its sentences; other texts are names and notes
_WIDTHS = (88, 96)  # pixels of the time and of the kind
FILTER_WIDTH = 168
_LONGEST_LINE = 1000  # characters


class EventsPanel(QWidget):
    """The log of the shown session."""

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        theme: ThemeModel,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._theme = session, theme
        self._model = EventModel(session, run, theme, self)
        self._filtered = EventFilter(self)
        self._filtered.setSourceModel(self._model)
        self.table = QTableView()
        self.table.setModel(self._filtered)
        self.table.setShowGrid(False)
        self.table.setTabKeyNavigation(False)  # Tab goes on; arrows move within
        self.table.setWordWrap(False)
        self.table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.table.verticalHeader().hide()
        fonts.fix_rows(self.table, -2)
        self.table.horizontalHeader().hide()
        header = self.table.horizontalHeader()
        header.setStretchLastSection(True)
        fonts.follow(self.table, self._fix_widths)
        scroll_bar = self.table.verticalScrollBar()
        self._at_end = True  # and stays there, whether events come or the panel is resized
        scroll_bar.valueChanged.connect(self._note_place)
        scroll_bar.rangeChanged.connect(self._keep_place)
        self.table.activated.connect(self._jump)
        self.table.clicked.connect(self._jump)
        empty = Empty(
            theme,
            "recent",
            "Nothing has happened yet",
            "Runs, toggles, verdicts, notes, warnings and errors are listed here.",
        )
        self._pages = QStackedWidget()
        self._pages.addWidget(empty)
        self._pages.addWidget(self._make_log())
        layout = _widgets.tight(QVBoxLayout(self), 0)
        layout.addWidget(self._pages)
        for changed in (
            session.eventsChanged,
            session.sessionChanged,
            session.segmentsChanged,
            session.comparisonsChanged,
            session.studiesChanged,
            run.stateChanged,
        ):
            changed.connect(self._refresh)
        session.eventsWanted.connect(self._show_near)
        theme.changed.connect(self._model.reset)
        configuration.catalogueChanged.connect(self._model.reset)
        self._refresh()

    def _fix_widths(self) -> None:
        header = self.table.horizontalHeader()
        for column, width in enumerate(_WIDTHS):
            header.setSectionResizeMode(column, QHeaderView.ResizeMode.Fixed)
            header.resizeSection(column, fonts.in_type(width, self.table.font()))

    def _make_log(self) -> QWidget:
        host = QWidget()
        host.setProperty("panel", True)
        self._search = QLineEdit()
        self._search.setPlaceholderText("Filter")
        self._search.setClearButtonEnabled(True)
        self._search.textChanged.connect(self._filtered.setFilterFixedString)
        self._picker = OptionPicker(FILTERS, FILTER_WIDTH)
        self._picker.set_title("Kinds of events")
        self._picker.set_value("all")
        self._picker.chosen.connect(self._filtered.set_kind)
        nothing = Empty(
            self._theme, "find", "No event matches", "The filter above hides all events."
        )
        nothing.offer("Show all", self._show_all)
        self._found = QStackedWidget()
        self._found.addWidget(nothing)
        self._found.addWidget(self.table)
        rows = self._filtered
        for changed in (rows.rowsInserted, rows.rowsRemoved, rows.modelReset, rows.layoutChanged):
            changed.connect(self._show_found)
        head = _widgets.tight(QHBoxLayout())
        head.setContentsMargins(8, 6, 8, 6)
        head.addWidget(self._picker)
        head.addWidget(self._search, 1)
        layout = _widgets.tight(QVBoxLayout(host), 0)
        layout.addLayout(head)
        layout.addWidget(_widgets.rule())
        layout.addWidget(self._found, 1)
        self._show_found()
        return host

    def _show_found(self) -> None:
        self._found.setCurrentIndex(1 if self._filtered.rowCount() else 0)

    def _show_all(self) -> None:
        self._search.clear()
        self._picker.set_value("all")
        self._filtered.set_kind("all")

    def _refresh(self) -> None:
        self._model.update()
        self._pages.setCurrentIndex(1 if self._model.rowCount() else 0)
        self._keep_place()

    def _note_place(self, value: int) -> None:
        self._at_end = value >= self.table.verticalScrollBar().maximum()

    def _keep_place(self) -> None:
        if self._at_end:
            self.table.scrollToBottom()

    def _jump(self, index: QModelIndex) -> None:
        row = self._filtered.mapToSource(index).row()
        self._session.focus(self._model.entries[row].t_s)

    def _show_near(self, t_s: float) -> None:
        """Select the event nearest to a time, with no filter in its way."""
        self._show_all()
        entries = self._model.entries
        if entries:
            row = min(range(len(entries)), key=lambda index: abs(entries[index].t_s - t_s))
            index = self._filtered.mapFromSource(self._model.index(row, 0))
            self.table.selectRow(index.row())
            self.table.scrollTo(index)


class EventModel(QAbstractTableModel):
    """Time, kind and text of the shown session's log; times are positions on its time axis."""

    def __init__(
        self, session: SessionModel, run: RunModel, theme: ThemeModel, parent: QWidget
    ) -> None:
        super().__init__(parent)
        self._session, self._run, self._theme = session, run, theme
        self._shown = session.shown
        self._axis = shared_axis(session.shown)
        self.entries: list[Event] = []
        self.reset()

    def rowCount(self, parent: Index | None = None) -> int:
        """Return the number of rows, one for each entry."""
        return 0 if parent is not None and parent.isValid() else len(self.entries)

    def columnCount(self, parent: Index | None = None) -> int:
        """Time, kind, text."""
        return 0 if parent is not None and parent.isValid() else 3

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        """Return the cell's text, icon, font or alignment."""
        event = self.entries[index.row()]
        self._axis.pull()  # called only if visible
        match role, index.column():
            case Qt.ItemDataRole.DisplayRole, column:
                text = self._session.titled(one_line(event.text, _LONGEST_LINE))
                if event.kind in _OF_RUNNER:
                    text = capitalized(text)
                return (clock(self._axis.position(event.t_s)), event.kind, text)[column]
            case Qt.ItemDataRole.ToolTipRole, 2:
                return wrapped(event.text)
            case Qt.ItemDataRole.DecorationRole, 1:
                name, colour = KIND_ICON.get(event.kind, KIND_ICON["info"])
                return icon(name, self._theme.current, colour)
            case Qt.ItemDataRole.FontRole, 0:
                return fonts.numbers()
            case Qt.ItemDataRole.TextAlignmentRole, 0:
                return Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        return None

    def update(self) -> None:
        """Take the entries that were added, or all of another session."""
        entries, count = self._log(), len(self.entries)
        if self._shown is not self._session.shown or entries[:count] != self.entries:
            self._replace(entries)
        elif len(entries) > count:
            self.beginInsertRows(QModelIndex(), count, len(entries) - 1)
            self.entries = entries
            self.endInsertRows()

    def reset(self) -> None:
        """Read everything again."""
        self._replace(self._log())

    def _replace(self, entries: list[Event]) -> None:
        self.beginResetModel()
        self._shown, self._axis = self._session.shown, shared_axis(self._session.shown)
        self.entries = entries
        self.endResetModel()

    def _log(self) -> list[Event]:
        running = self._session.live and self._run.active
        return session_log.log(self._session.shown, running=running)


class EventFilter(QSortFilterProxyModel):
    """Filter of entries by kind and by typed text."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._kind = "all"
        self.setFilterKeyColumn(2)
        self.setFilterCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)

    def set_kind(self, kind: str) -> None:
        """Show only this kind: one of ``FILTERS``."""
        self._kind = kind
        self.invalidate()

    def filterAcceptsRow(self, row: int, parent: Index) -> bool:
        """Return True if a row is of the kind and has the text."""
        if self._kind == "all" and not self.filterRegularExpression().pattern():
            return True
        kind = self.sourceModel().index(row, 1, parent).data()
        kinds = _GROUPS.get(self._kind, (self._kind,))
        return (self._kind == "all" or kind in kinds) and super().filterAcceptsRow(row, parent)


def clock(t_s: float) -> str:
    """Return seconds as a clock: ``1:02:03.4``."""
    minutes, seconds = divmod(round(max(0.0, t_s), 1), 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02d}:{seconds:04.1f}" if hours else f"{minutes}:{seconds:04.1f}"
