"""Rows of toggles in groups that collapse; unavailable toggles are folded at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QToolButton, QVBoxLayout, QWidget

from workbench.theming import fonts
from workbench.theming.icons import icon
from workbench.theming.theme import Theme
from workbench.ui.panels import _widgets
from workbench.ui.panels._toggle_row import ToggleRow

# Reasons why toggles are unavailable: singular and plural of the line's text.
UNAVAILABLE = {
    "gpu": ("needs a CUDA GPU", "need a CUDA GPU"),
    "model": ("is for other models", "are for other models"),
    "here": ("cannot be used here", "cannot be used here"),
}


@dataclass(frozen=True)
class Filter:
    """Filter of the toggles by text and state."""

    text: str = ""
    only_changed: bool = False
    only_available: bool = False


class ToggleGroups(QWidget):
    """Rows under headings, and a line for each reason why some are hidden."""

    def __init__(self, rows: Sequence[ToggleRow], theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._unavailable: Mapping[str, str] = {}
        self._changed: frozenset[str] = frozenset()
        self._filter = Filter()
        self._shown: object = None
        groups: dict[str, list[ToggleRow]] = {}
        for row in rows:
            groups.setdefault(row.toggle.group, []).append(row)
        column = _widgets.tight(QVBoxLayout(self), 1)
        self._boxes = [
            (self._heading(group, members), members) for group, members in groups.items()
        ]
        for heading, members in self._boxes:
            for widget in (*filter(None, [heading]), *members):
                column.addWidget(widget)
        self._nothing = _widgets.note("No toggle matches.")
        column.addWidget(self._nothing)
        self._foot = _widgets.rule()
        column.addWidget(self._foot)
        self._lines = {reason: self._fold_line(reason) for reason in UNAVAILABLE}
        for line in self._lines.values():
            column.addWidget(line)
        self._arrange()

    def show_rows(
        self,
        unavailable: Mapping[str, str],
        changed: frozenset[str],
        row_filter: Filter,
        theme: Theme,
    ) -> None:
        """Show the rows that are wanted.

        ``unavailable`` maps names of toggles to keys of ``UNAVAILABLE``.
        """
        shown = (dict(unavailable), changed, row_filter, theme.name)
        if shown == self._shown:
            return
        self._shown = shown
        self._unavailable, self._changed = unavailable, changed
        self._filter, self._theme = row_filter, theme
        self._arrange()

    def set_collapsed(self, collapsed: bool) -> None:
        """Collapse or expand every group."""
        for heading, _ in self._boxes:
            if heading is not None:
                heading.setChecked(not collapsed)

    def _bare_button(self, name: str) -> QToolButton:
        button = QToolButton()
        button.setObjectName(name)
        button.setCheckable(True)
        button.setProperty("bare", True)
        button.setFont(fonts.small())
        button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        return button

    def _heading(self, group: str, members: Sequence[ToggleRow]) -> QToolButton | None:
        """Return a button that collapses the group; None for a single toggle of the same name."""
        if [row.toggle.title for row in members] == [group]:
            return None
        button = self._bare_button("group")
        button.setText(group)
        button.setChecked(True)
        button.toggled.connect(self._arrange)
        return button

    def _fold_line(self, reason: str) -> QToolButton:
        button = self._bare_button(f"unavailable-{reason}")
        button.toggled.connect(self._arrange)
        return button

    def _is_wanted(self, row: ToggleRow) -> bool:
        name, row_filter = row.toggle.name, self._filter
        reason = self._unavailable.get(name)
        if row_filter.only_changed and name not in self._changed:
            return False
        if reason is not None and row_filter.only_available:
            return False
        if row_filter.text:  # a search shows a toggle whether it is available or not
            options = " ".join(option.title for option in row.toggle.options)
            text = f"{row.toggle.title} {name} {row.toggle.group} {options}".lower()
            return all(word in text for word in row_filter.text.lower().split())
        return reason is None or self._lines[reason].isChecked()

    def _arrange(self) -> None:
        any_row = False
        for heading, members in self._boxes:
            shown_rows = [row for row in members if self._is_wanted(row)]
            any_row = any_row or bool(shown_rows)
            opened = heading is None or heading.isChecked() or bool(self._filter.text)
            for row in members:
                row.setVisible(opened and row in shown_rows)
            if heading is not None:
                heading.setVisible(bool(shown_rows))
                heading.setIcon(icon("opened" if opened else "closed", self._theme, "muted"))
        self._nothing.setVisible(not any_row)
        lines = [self._show_line(reason) for reason in UNAVAILABLE]
        self._foot.setVisible(any(lines))

    def _show_line(self, reason: str) -> bool:
        line, row_filter = self._lines[reason], self._filter
        count = list(self._unavailable.values()).count(reason)
        shown = bool(count) and row_filter == Filter()
        words = UNAVAILABLE[reason][count != 1]
        line.setText(f"{count} {words}, {'hide' if line.isChecked() else 'show'}")
        line.setIcon(icon("locked", self._theme, "muted"))
        line.setVisible(shown)
        return shown
