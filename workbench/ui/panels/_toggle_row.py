"""The row of a toggle: title, last result, state, control; reasons and evidence on demand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QToolButton, QVBoxLayout, QWidget

from sessions.model import Evidence
from sessions.plain_text import wrapped
from sessions.verdicts.verdict_words import brief_summary, summary_sentence
from workbench.protocol import Blocked, Catalogue, ToggleInfo
from workbench.theming import fonts
from workbench.theming.icons import icon
from workbench.theming.theme import Theme
from workbench.ui.controllers.toggle_verdicts import ToggleVerdict
from workbench.ui.menus.option_picker import OptionPicker
from workbench.ui.panels import _verdict_lines as verdict_lines
from workbench.ui.panels import _widgets
from workbench.ui.panels._evidence import mark_of
from workbench.ui.state import config_edit

TITLE_PX = 84  # least width of a long title beside a result
PICKER_PX = 122  # fits "Shared setting", which most rows show
REMARKABLE = ("no effect", "failed")  # statuses that the row shows as words


@dataclass(frozen=True)
class RowState:
    """State of a toggle that its row shows."""

    option: str
    blocked: dict[str, Blocked] = field(default_factory=dict)
    evidence: Evidence | None = None
    verdict: ToggleVerdict | None = None
    pending: bool = False


class ToggleRow(QWidget):
    """Row of a toggle; ``chosen`` and ``fix`` report clicks."""

    chosen = Signal(str, str)  # toggle, option
    fix = Signal(dict, str)  # choices that unblock, text

    def __init__(self, toggle: ToggleInfo, catalogue: Catalogue) -> None:
        super().__init__()
        self.toggle = toggle
        self._catalogue = catalogue
        self.setObjectName(f"toggle-{toggle.name}")
        self._shown: tuple[RowState, Theme] | None = None
        self._title = _widgets.OneLine(Qt.TextElideMode.ElideRight, toggle.help)
        self._title.say(toggle.title)
        self._title.setMinimumWidth(min(TITLE_PX, self._title.sizeHint().width()))
        options = [(option.name, option.title) for option in toggle.options]
        self.picker = OptionPicker(options, PICKER_PX, dense=True)
        self.picker.set_title(toggle.title)
        self.picker.setToolTip(toggle.help)
        self.picker.chosen.connect(lambda option: self.chosen.emit(toggle.name, option))
        self._title.setBuddy(self.picker.focus_target())
        self.result = _widgets.OneLine(Qt.TextElideMode.ElideRight)
        self.result.setObjectName("result")
        self.result.setFont(fonts.small())
        self.result.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.mark = self._button("mark", f"Evidence of {toggle.title}")
        self.lock = self._button("lock", f"Blocked options of {toggle.title}")
        self._is_open = False  # True if the details below the line are shown
        self._details = QWidget()
        self._details.hide()
        self._notes = _widgets.tight(QVBoxLayout(self._details), 4)
        self._notes.setContentsMargins(8, 0, 0, 6)
        head = _widgets.tight(QHBoxLayout(), 4)
        head.addWidget(self._title)
        head.addWidget(self.result, 1)
        for widget in (self.mark, self.lock, self.picker):
            head.addWidget(widget)
        layout = _widgets.tight(QVBoxLayout(self), 2)
        layout.addLayout(head)
        layout.addWidget(self._details)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Widen the control with the row: a wide row has room for long titles of options."""
        super().resizeEvent(event)
        self.picker.fit_row(self.width())

    def _button(self, name: str, title: str) -> QToolButton:
        """Return a small button that shows and hides the details."""
        button = QToolButton()
        button.setObjectName(name)
        button.setProperty("small", True)
        button.setAccessibleName(title)
        button.clicked.connect(self.toggle_details)
        button.hide()
        return button

    def toggle_details(self) -> None:
        """Show the evidence and the reasons below the line, or hide them."""
        self._is_open = not self._is_open
        self._fill_details()
        self._details.setVisible(self._is_open)

    def show_state(self, state: RowState, theme: Theme) -> None:
        """Show the chosen option and everything that is known about it."""
        if self._shown == (state, theme):
            return
        self._shown = (state, theme)
        self.picker.set_value(state.option)
        self.picker.set_blocked({name: why.reason for name, why in state.blocked.items()})
        focus = self.focusWidget()
        if focus is not None and focus.hasFocus() and self._details.isAncestorOf(focus):
            self.picker.focus_target().setFocus()  # the details are about to be replaced
        lines = list(self._lines(state))
        text, (icon_name, role), _ = lines[0] if lines else ("", ("", ""), "")
        if not lines or (lines[0][1][0] == "effective" and state.verdict is None):
            text = ""  # the icon is enough
        self.result.say(text)
        _widgets.set_tone(self.result, _tone(role) or "muted")
        self.mark.setVisible(bool(lines))
        if lines:
            self.mark.setIcon(icon(icon_name, theme, role))
            self.mark.setToolTip(wrapped("\n".join(detail for *_, detail in lines)))
        reasons = self._reasons(state.blocked)
        self.lock.setVisible(bool(reasons))
        if reasons:
            self.lock.setIcon(icon("locked", theme, "muted"))
            texts = [f"{', '.join(titles)}: {why.reason_with_fix}" for why, titles in reasons]
            self.lock.setToolTip(wrapped("\n".join(texts)))
        if not lines and not reasons:
            self._is_open = False
            self._details.hide()
        self._fill_details()

    def _fill_details(self) -> None:
        """Show evidence and reasons in the details while these are open.

        Closed details have no widgets: a change of the theme would style hundreds.
        """
        _widgets.clear(self._notes)
        if self._shown is None or not self._is_open:
            return
        state, theme = self._shown
        for _, (icon_name, role), detail in self._lines(state):
            label = _widgets.note(detail, _tone(role))
            label.setObjectName("evidence")
            self._notes.addWidget(_widgets.marked(label, icon_name, theme, role))
        for why, titles in self._reasons(state.blocked):
            self._notes.addWidget(self._reason(why, titles, theme))

    def _lines(self, state: RowState) -> Iterator[tuple[str, tuple[str, str], str]]:
        """Yield a brief text, icon with role, and the full text; the most important line first."""
        verdict = self._verdict_line(state) if state.verdict is not None else None
        if state.pending:
            title = config_edit.option_title(self.toggle, state.option)
            yield "pending", ("pending", "accent"), f"{title} is pending"
        elif (evidence := state.evidence) is not None:
            text = f"{evidence.status.capitalize()}: {evidence.text}"
            if evidence.requested != state.option:
                text = f"{config_edit.option_title(self.toggle, evidence.requested)}: {text}"
            if verdict is not None and evidence.status not in REMARKABLE:
                yield verdict
                verdict = None
            yield evidence.status, mark_of(evidence.status), text
        if verdict is not None:
            yield verdict

    def _verdict_line(self, state: RowState) -> tuple[str, tuple[str, str], str]:
        verdict = state.verdict
        assert verdict is not None
        brief, text = brief_summary(verdict.comparison), self._verdict_text(verdict)
        if state.option != verdict.other:
            brief = f"{config_edit.option_title(self.toggle, verdict.other)}: {brief}"
        if verdict.newer is not None:
            brief = f"older: {brief}"
            text = f"{text}; newer, paired by a run: {self._verdict_text(verdict.newer)}"
        mark = verdict_lines.icon_of(verdict.comparison)
        role = verdict_lines.tone(verdict.comparison) or "muted"
        return brief, (mark, role), text

    def _verdict_text(self, verdict: ToggleVerdict) -> str:
        base, other = (
            config_edit.option_title(self.toggle, option)
            for option in (verdict.base, verdict.other)
        )
        return f"{other} against {base}: {summary_sentence(verdict.comparison)}"

    def _reasons(self, blocked: dict[str, Blocked]) -> list[tuple[Blocked, list[str]]]:
        """Return the reasons with the titles of the options that each of them blocks."""
        reasons: dict[str, tuple[Blocked, list[str]]] = {}
        for option in self.toggle.options:
            if (why := blocked.get(option.name)) is not None:
                reasons.setdefault(why.reason_with_fix, (why, []))[1].append(option.title)
        return list(reasons.values())

    def _reason(self, why: Blocked, titles: list[str], theme: Theme) -> QWidget:
        label = _widgets.note(f"{', '.join(titles)}: {why.reason_with_fix}")
        label.setObjectName("blocked")
        row = _widgets.marked(label, "locked", theme, "muted")
        if why.set:
            button = _widgets.compact("Fix")
            button.setObjectName("fix")
            choices = config_edit.choice_text(self._catalogue, why.set)
            button.setToolTip(f"Choose {choices}")
            text = f"Unblock {self.toggle.title}: {choices}"
            button.clicked.connect(lambda: self.fix.emit(dict(why.set), text))
            row_layout = row.layout()
            assert row_layout is not None
            row_layout.addWidget(button)
        return row


def _tone(role: str) -> str:
    return "" if role == "muted" else role
