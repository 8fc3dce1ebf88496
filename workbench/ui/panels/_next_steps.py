"""The list of what to try next: a line for each suggestion, with Apply, Verdict and Details."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from sessions.model import Study
from sessions.plain_text import capitalized
from sessions.studies.next_steps import Suggestion
from workbench.theming import fonts
from workbench.ui.controllers.next_steps import NextSteps
from workbench.ui.panels import _widgets
from workbench.ui.panels._table_view import TableView
from workbench.ui.state.theme import ThemeModel

APPLY_TIP = "Choose this option for the run in progress or the next run"
VERDICT_TIP = "Measure the profiled configuration with and without this option"
_MOST = 3  # lines
_DETAIL_ROWS = 4  # rows of the table of details, with its heading


class NextStepsList(QWidget):
    """The suggestions for one profile."""

    def __init__(self, steps: NextSteps, theme: ThemeModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._steps, self._theme = steps, theme
        self._shown: list[Suggestion] = []
        self._column = _widgets.tight(QVBoxLayout(self), 2)

    def show_study(self, study: Study | None) -> None:
        """Show the suggestions for a profile; the widget is hidden if there are none."""
        suggestions = [] if study is None else self._steps.suggestions(study)[:_MOST]
        if suggestions != self._shown or study is None:
            self._fill(suggestions, study)
        for row, suggestion in zip(self.findChildren(_Row), suggestions, strict=False):
            assert study is not None
            row.allow(
                self._steps.why_not_apply(suggestion), self._steps.why_not_judge(suggestion, study)
            )

    def _fill(self, suggestions: Sequence[Suggestion], study: Study | None) -> None:
        self._shown = list(suggestions)
        _widgets.clear(self._column)
        self.setVisible(bool(suggestions))
        if not suggestions or study is None:
            return
        self._column.addWidget(_widgets.heading("Try next"))
        for suggestion in suggestions:
            row = _Row(suggestion, self._theme)
            row.apply.clicked.connect(partial(self._steps.apply, suggestion))
            row.verdict.clicked.connect(partial(self._steps.judge, suggestion, study))
            self._column.addWidget(row)


class _Row(QWidget):
    def __init__(self, suggestion: Suggestion, theme: ThemeModel) -> None:
        super().__init__()
        self.apply, self.verdict = _widgets.compact("Apply"), _widgets.compact("Verdict")
        self.text = _widgets.OneLine(Qt.TextElideMode.ElideRight, "The gain is an upper bound.")
        self.text.say(capitalized(suggestion.text))
        self.details = TableView()
        fonts.follow(self.details, self._fix_details)
        self.details.show_table(suggestion.table())
        self.expander = _widgets.expander("", theme.current, self.details)
        self.expander.setToolTip("Details")
        self.expander.setAccessibleName(f"Details: {suggestion.text}")
        self.expander.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonIconOnly)
        policy = self.expander.sizePolicy()
        policy.setRetainSizeWhenHidden(True)  # all lines begin at one edge
        self.expander.setSizePolicy(policy)
        self.expander.setVisible(bool(suggestion.details))
        line = _widgets.tight(QHBoxLayout(), 6)
        line.addWidget(self.expander)
        line.addWidget(self.text, 1)
        for button in (self.apply, self.verdict):
            button.setVisible(bool(suggestion.toggles))
            button.setAccessibleName(f"{button.text()}: {suggestion.text}")
            line.addWidget(button)
        column = _widgets.tight(QVBoxLayout(self), 0)
        column.addLayout(line)
        column.addWidget(self.details)

    def _fix_details(self) -> None:
        self.details.setFixedHeight(_DETAIL_ROWS * fonts.row_px(self.details.font()))

    def allow(self, why_not_apply: str, why_not_judge: str) -> None:
        """Enable the buttons, or give the reasons."""
        _widgets.allow(self.apply, why_not_apply, APPLY_TIP)
        _widgets.allow(self.verdict, why_not_judge, VERDICT_TIP)
