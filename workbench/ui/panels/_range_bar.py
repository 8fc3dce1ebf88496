"""The line under the live plots: statistics of a marked range, or the events of a step."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QToolButton, QWidget

from sessions.plain_text import one_line
from workbench.charts.range_statistics import RangeStatistics, Step
from workbench.charts.units import MILLISECONDS, SECONDS
from workbench.theming import fonts
from workbench.ui.panels import _widgets

_LONGEST_CLAUSE = 80  # characters of an event


class RangeBar(QWidget):
    """Bar with the statistics of the marked range and its actions; hidden if nothing is marked."""

    zoomWanted = Signal()
    slowestWanted = Signal()
    eventsWanted = Signal()
    closed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("panel", True)
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self._text = _widgets.OneLine(Qt.TextElideMode.ElideRight)
        self._text.setFont(fonts.numbers())
        self.zoom = self._button("Zoom", "Show only this range", self.zoomWanted)
        self.slowest = self._button(
            "Slowest step", "Show the slowest steady step of the range (J)", self.slowestWanted
        )
        self.events = self._button("Events", "Show the events near this step", self.eventsWanted)
        close = self._button("×", "Clear (Esc)", self.closed)
        row = _widgets.tight(QHBoxLayout(self), 8)
        row.setContentsMargins(12, 3, 8, 3)
        row.addWidget(self._text, 1)
        for button in (self.zoom, self.slowest, self.events, close):
            row.addWidget(button)
        self.hide()

    @property
    def text(self) -> str:
        """The line that is shown, in full."""
        return self._text.accessibleName()

    def show_range(self, statistics: RangeStatistics) -> None:
        """Show the statistics of a marked range."""
        self._say(f"{SECONDS.text(statistics.seconds, digits=4)}: {statistics.text()}")
        self.zoom.show()
        self.slowest.setVisible(statistics.steps > 0)
        self.events.hide()

    def show_step(self, step: Step, position: float, clauses: list[str], *, events: bool) -> None:
        """Show the events of a step that began at this position of the axis."""
        step_text = (
            f"Step {step.row:,} of #{step.segment.index} at {SECONDS.text(position, digits=4)}"
        )
        parts = [MILLISECONDS.text(step.ms), *(one_line(c, _LONGEST_CLAUSE) for c in clauses)]
        self._say(f"{step_text}: {'; '.join(parts)}")
        self.zoom.hide()
        self.slowest.hide()
        self.events.setVisible(events)

    def _say(self, text: str) -> None:
        self._text.say(text)
        self._text.setAccessibleName(text)
        self.show()

    @staticmethod
    def _button(text: str, tip: str, signal: Signal) -> QToolButton:
        button = QToolButton()
        button.setText(text)
        button.setToolTip(tip)
        button.setAccessibleName(tip if text == "×" else text)
        button.clicked.connect(signal)
        return button
