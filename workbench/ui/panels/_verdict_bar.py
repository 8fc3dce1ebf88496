"""The verdict inline with the toggles: offered, as it is measured, and what came of it."""

from __future__ import annotations

from PySide6.QtWidgets import QVBoxLayout, QWidget

from sessions.model import PairedComparison
from sessions.studies import prediction
from sessions.verdicts.verdict_words import (
    basis,
    headline,
    ratio_line,
    remarks,
    sentence,
    standing,
    summary_sentence,
)
from workbench.ui.panels import _verdict_lines as verdict_lines
from workbench.ui.panels import _widgets
from workbench.ui.panels._bar import Bar, Line
from workbench.ui.state import AppState


class VerdictBar(QWidget):
    """Takes its content from ``state.offers`` and the newest comparison of the live session."""

    def __init__(self, state: AppState, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state = state
        self.bar = Bar(state.offers.dismiss)
        _widgets.tight(QVBoxLayout(self), 0).addWidget(_widgets.Snug(self.bar))
        for changed in (
            state.comparisonsChanged,
            state.segmentsChanged,
            state.stateChanged,
            state.sessionChanged,
            state.themeChanged,
        ):
            changed.connect(self._refresh)
        self._refresh()

    def _refresh(self) -> None:
        state = self._state
        offers, comparison = state.offers, state.verdicts.newest
        answer = offers.answer if state.live else None
        if not state.live or state.replaying:
            self.bar.leave()
        elif offers.judged is not None and state.verdicts.busy:
            self._show_measuring(comparison if state.verdicts.measuring else None)
        elif offers.offer is not None:
            self._show_offer()
        elif offers.judged is not None and answer is not None:
            self._show_result(offers.judged.text, answer)
        else:
            self.bar.leave()

    def _show_offer(self) -> None:
        offers = self._state.offers
        assert offers.offer is not None
        line = f"{offers.offer.text}: did it help?"
        button = "Verdict"
        if offers.known:
            line, button = f"{offers.offer.text}: compared already.", "Compare again"
        elif offers.automatic:
            line = f"{offers.offer.text}: a verdict follows."
        lines: list[Line] = [(line, "verdict", "accent")]
        if offers.prediction is not None:
            said = prediction.line(offers.prediction)
            lines.append((f"{said[:1].upper()}{said[1:]}.", "", ""))
        # While it has to wait, for another comparison or a build, so has its button.
        buttons = [] if self._state.verdicts.why_not() else [(button, offers.accept)]
        self.bar.say("info", lines, buttons, self._state.theme)

    def _show_measuring(self, comparison: PairedComparison | None) -> None:
        lines: list[Line] = [("Building both configurations", "pending", "accent")]
        if comparison is not None:
            lines = [(f"Measuring: {headline(comparison)}", "pending", "accent")]
            lines.append((ratio_line(comparison), "", ""))
            lines += self._troubles(comparison)
        lines.append(("Toggles that are chosen now wait until it is over.", "", ""))
        enough = self._state.verdicts.enough
        self.bar.say("info", lines, [("Enough", enough)], self._state.theme, closes=False)

    def _show_result(self, text: str, comparison: PairedComparison) -> None:
        verdicts = self._state.verdicts
        tone = verdict_lines.tone(comparison)
        lines: list[Line] = [
            (
                f"{text}: {summary_sentence(comparison)}.",
                verdict_lines.icon_of(comparison),
                tone or "muted",
            ),
            (sentence("; ".join(filter(None, (basis(comparison), standing(comparison))))), "", ""),
        ]
        if said := prediction.outcome(comparison):
            lines.append((f"{said}.", "", ""))
        lines += self._troubles(comparison)
        buttons = []
        if comparison.verdict == "UNDECIDED":
            lines += [(text, "", "") for text in remarks(comparison)[:1]]
            if not verdicts.why_not_more():
                buttons.append((verdicts.more_text(), verdicts.measure_more))
        shown = tone if tone in ("bad", "warning") else "info"
        self.bar.say(shown, lines, buttons, self._state.theme)

    def _troubles(self, comparison: PairedComparison) -> list[Line]:
        state = self._state
        return verdict_lines.troubles(comparison, state.session.segments, state.titles)
