"""One toggle: its options, whether the choice took effect, and why options are blocked."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QLabel, QSizePolicy, QVBoxLayout, QWidget

from sessions.model import Evidence
from workbench.protocol import Blocked, Catalogue, ToggleInfo
from workbench.theming.theme import Theme
from workbench.ui.menus.option_picker import OptionPicker
from workbench.ui.panels import _widgets
from workbench.ui.panels._evidence import mark_of
from workbench.ui.state import config_edit

SHOWN_REASONS = 2  # further ones are behind a click


class ToggleRow(QWidget):
    """Shows one toggle; ``chosen`` and ``fix`` are a person's wishes."""

    chosen = Signal(str, str)  # toggle, option
    fix = Signal(dict, str)  # choices that unblock, text

    def __init__(self, toggle: ToggleInfo, catalogue: Catalogue) -> None:
        super().__init__()
        self.toggle = toggle
        self._catalogue = catalogue
        self.setObjectName(f"toggle-{toggle.name}")
        self._shown: object = None
        self._title = QLabel(toggle.title)
        self._title.setToolTip(toggle.help)
        self._title.setWordWrap(True)
        self._title.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        self.picker = OptionPicker([(option.name, option.title) for option in toggle.options])
        self.picker.setToolTip(toggle.help)
        self.picker.chosen.connect(lambda option: self.chosen.emit(toggle.name, option))
        self._title.setBuddy(self.picker.focus_target())
        head = _widgets.tight(QHBoxLayout())
        head.addWidget(self._title, 1)
        head.addWidget(self.picker)
        self._notes = _widgets.tight(QVBoxLayout(), 4)
        layout = _widgets.tight(QVBoxLayout(self), 4)
        layout.addLayout(head)
        layout.addLayout(self._notes)

    def show_state(
        self,
        option: str,
        blocked: dict[str, Blocked],
        evidence: Evidence | None,
        pending: bool,
        theme: Theme,
    ) -> None:
        """Show the chosen option and all that is known about it."""
        shown = (option, blocked, evidence, pending, theme.name)
        if shown == self._shown:
            return
        self._shown = shown
        self.picker.set_value(option)
        self.picker.set_blocked({name: why.reason for name, why in blocked.items()})
        focus = self.focusWidget()
        if focus is not None and focus.hasFocus() and not self.picker.isAncestorOf(focus):
            self.picker.focus_target().setFocus()  # a button of the notes: they are made anew
        _widgets.clear(self._notes)
        if pending:
            text = f"{config_edit.option_title(self.toggle, option)} is on its way"
            self._add("pending", _widgets.note(text, "accent"), theme, "accent")
        elif evidence is not None:
            self._show_evidence(evidence, option, theme)
        self._show_blocked(blocked, theme)

    def _show_evidence(self, evidence: Evidence, option: str, theme: Theme) -> None:
        icon_name, role = mark_of(evidence.status)
        text = f"{evidence.status.capitalize()}: {evidence.text}"
        if evidence.requested != option:
            text = f"{config_edit.option_title(self.toggle, evidence.requested)}: {text}"
        label = _widgets.brief_note(text, _tone(role))
        label.setObjectName("evidence")
        self._add(icon_name, label, theme, role)

    def _show_blocked(self, blocked: dict[str, Blocked], theme: Theme) -> None:
        reasons: list[tuple[Blocked, list[str]]] = []
        for option in self.toggle.options:
            why = blocked.get(option.name)
            if why is None:
                continue
            for known, titles in reasons:
                if known == why:
                    titles.append(option.title)
                    break
            else:
                reasons.append((why, [option.title]))
        for why, titles in reasons[:SHOWN_REASONS]:
            self._notes.addWidget(self._reason(why, titles, theme))
        rest = reasons[SHOWN_REASONS:]
        if not rest:
            return
        body = QWidget()
        column = _widgets.tight(QVBoxLayout(body), 4)
        for why, titles in rest:
            column.addWidget(self._reason(why, titles, theme))
        count = sum(len(titles) for _, titles in rest)
        text = f"{count} more blocked option" + ("s" if count > 1 else "")
        self._notes.addWidget(_widgets.expander(text, theme, body))
        self._notes.addWidget(body)

    def _reason(self, why: Blocked, titles: list[str], theme: Theme) -> QWidget:
        label = _widgets.note(f"{', '.join(titles)}: {why.said}")
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

    def _add(self, icon_name: str, label: QLabel, theme: Theme, role: str) -> None:
        self._notes.addWidget(_widgets.marked(label, icon_name, theme, role))


def _tone(role: str) -> str:
    return "" if role == "muted" else role
