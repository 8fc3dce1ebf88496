"""The verdict above the toggles: as an offer, during its measurement, and its result."""

from __future__ import annotations

from PySide6.QtWidgets import QVBoxLayout, QWidget

from sessions.model import PairedComparison
from sessions.plain_text import sentence
from sessions.studies import prediction
from sessions.verdicts.verdict_words import (
    basis,
    interim_headline,
    ratio_line,
    remarks,
    standing,
    summary_sentence,
)
from workbench.ui.controllers.verdict_prompt import Offer, VerdictPrompt
from workbench.ui.controllers.verdicts import Verdicts
from workbench.ui.panels import _verdict_lines as verdict_lines
from workbench.ui.panels import _widgets
from workbench.ui.panels._bar import Bar, Line
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel


class VerdictBar(QWidget):
    """Bar that shows the offer, or the newest comparison of the live session."""

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        verdicts: Verdicts,
        prompt: VerdictPrompt,
        theme: ThemeModel,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._run, self._verdicts, self._prompt = session, run, verdicts, prompt
        self._theme = theme
        self._detailed: Offer | None = None  # the offer whose details are shown
        self.bar = Bar(prompt.dismiss)
        _widgets.tight(QVBoxLayout(self), 0).addWidget(_widgets.FittedScrollArea(self.bar))
        for changed in (
            session.comparisonsChanged,
            session.segmentsChanged,
            run.stateChanged,
            session.sessionChanged,
            theme.changed,
        ):
            changed.connect(self._refresh)
        self._refresh()

    def _refresh(self) -> None:
        prompt, comparison = self._prompt, self._verdicts.newest
        answer = prompt.answer if self._session.live else None
        if not self._session.live or self._run.replaying:
            self.bar.leave()
        elif prompt.judged is not None and self._verdicts.busy:
            self._show_measuring(comparison if self._verdicts.measuring else None)
        elif prompt.offer is not None:
            self._show_offer()
        elif prompt.judged is not None and answer is not None:
            self._show_result(prompt.judged, answer)
        else:
            self.bar.leave()

    def _show_offer(self) -> None:
        prompt = self._prompt
        assert prompt.offer is not None
        line = f"{prompt.offer.text}: did {'it' if prompt.offer.count == 1 else 'they'} help?"
        button = "Verdict"
        if prompt.known:
            line, button = f"{prompt.offer.text}: already compared.", "Compare again"
        elif prompt.automatic:
            line = f"{prompt.offer.text}: a verdict follows."
        lines: list[Line] = [(line, "verdict", "accent")]
        if prompt.prediction is not None:
            lines.append((sentence(prediction.line(prompt.prediction)), "", ""))
        # Without a button while a comparison or a build is in progress.
        buttons = [] if self._verdicts.why_not() else [(button, prompt.accept)]
        self.bar.say("info", lines, buttons, self._theme.current)

    def _show_measuring(self, comparison: PairedComparison | None) -> None:
        lines: list[Line] = [("Building both configurations", "pending", "accent")]
        if comparison is not None:
            text = self._session.titled(interim_headline(comparison))
            lines = [(text, "pending", "accent")]
            lines.append((ratio_line(comparison), "", ""))
            lines += self._troubles(comparison)
        lines.append(("Toggles chosen now become active after the measurement.", "", ""))
        enough = self._verdicts.enough
        self.bar.say("info", lines, [("Enough", enough)], self._theme.current, closes=False)

    def _show_result(self, judged: Offer, comparison: PairedComparison) -> None:
        """Show the verdict in one line, and wrong results; the rest is behind a button."""
        verdicts = self._verdicts
        tone = verdict_lines.tone(comparison)
        lines: list[Line] = [
            (
                f"{judged.text}: {summary_sentence(comparison)}.",
                verdict_lines.icon_of(comparison),
                tone or "muted",
            ),
            *self._troubles(comparison),
        ]
        if self._detailed == judged:
            lines += _details(comparison)
        buttons = [("Less" if self._detailed == judged else "Details", self._switch_details)]
        if comparison.verdict == "UNDECIDED" and not verdicts.why_not_more():
            buttons.insert(0, (verdicts.more_text(), verdicts.measure_more))
        shown = tone if tone in ("bad", "warning") else "info"
        self.bar.say(shown, lines, buttons, self._theme.current)

    def _switch_details(self) -> None:
        judged = self._prompt.judged
        self._detailed = None if self._detailed == judged else judged
        self._refresh()

    def _troubles(self, comparison: PairedComparison) -> list[Line]:
        return verdict_lines.troubles(
            comparison, self._session.shown.segments, self._session.titles
        )


def _details(comparison: PairedComparison) -> list[Line]:
    """Return how the verdict was measured, its prediction, and why it is undecided."""
    texts = [sentence("; ".join(filter(None, (basis(comparison), standing(comparison)))))]
    if outcome := prediction.outcome(comparison):
        texts.append(f"{outcome}.")
    if comparison.verdict == "UNDECIDED":
        texts += remarks(comparison)[:1]
    return [(text, "", "") for text in texts]
