"""Rows of toggles under the headings of their groups; those of other models are folded away."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QToolButton, QVBoxLayout, QWidget

from workbench.theming.icons import icon
from workbench.theming.theme import Theme
from workbench.ui.panels import _widgets
from workbench.ui.panels._toggle_row import ToggleRow


class ToggleGroups(QWidget):
    """The rows, and a line that says how many are folded and lets them be shown."""

    def __init__(self, rows: Sequence[ToggleRow], theme: Theme) -> None:
        super().__init__()
        self._rows, self._theme = rows, theme
        self._line = QToolButton()
        self._line.setObjectName("folded")
        self._line.setCheckable(True)
        self._line.setProperty("bare", True)
        self._line.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self._line.setIconSize(_widgets.SMALL_ICON)
        self._line.toggled.connect(self._show)
        self._absent: Collection[str] = ()
        self._said: object = None
        groups: dict[str, list[ToggleRow]] = {}
        for row in rows:
            groups.setdefault(row.toggle.group, []).append(row)
        self._boxes: list[tuple[QWidget, QWidget, list[ToggleRow]]] = []
        column = _widgets.tight(QVBoxLayout(self), 10)
        for group, members in groups.items():
            column.addWidget(self._box(group, members))
        self._foot = _widgets.rule()
        column.addWidget(self._foot)
        column.addWidget(self._line)
        self.fold((), theme)

    def fold(self, absent: Collection[str], theme: Theme) -> None:
        """Say which toggles the family has nothing for, and hide them unless they are shown."""
        said = (tuple(absent), theme.name)
        if said == self._said:
            return
        self._said = said
        self._absent, self._theme = absent, theme
        count = len(absent)
        self._line.setText(f"{count} more {'are' if count > 1 else 'is'} for other models")
        self._line.setVisible(bool(absent))
        self._foot.setVisible(bool(absent))
        self._show()

    def _box(self, group: str, members: list[ToggleRow]) -> QWidget:
        box = QWidget()
        column = _widgets.tight(QVBoxLayout(box), 10)
        rule = _widgets.rule()
        column.addWidget(rule)
        if [row.toggle.title for row in members] != [group]:
            column.addWidget(_widgets.heading(group))
        for row in members:
            column.addWidget(row)
        self._boxes.append((box, rule, members))
        return box

    def _show(self) -> None:
        opened = self._line.isChecked()
        self._line.setIcon(icon("opened" if opened else "closed", self._theme, "muted"))
        above = False
        for box, rule, members in self._boxes:
            seen = [row for row in members if opened or row.toggle.name not in self._absent]
            for row in members:
                row.setVisible(row in seen)
            box.setVisible(bool(seen))
            rule.setVisible(above)
            above = above or bool(seen)
