"""A verdict offered after toggles were changed in a run; in automatic mode it is asked for at once.

Clicks that follow one another quickly are one change: the base stays the configuration before the
first of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer

from sessions.model import Configuration, PairedComparison, Prediction
from workbench import protocol
from workbench.ui.controllers import config_edit

if TYPE_CHECKING:
    from workbench.ui.settings import Settings
    from workbench.ui.state import AppState

SETTLE_MS = 1500  # after the last click
NAMED = 2  # toggles; more are counted


@dataclass(frozen=True)
class Offer:
    """A change of toggles that can be judged: ``text`` names what was chosen."""

    base: Configuration
    other: Configuration
    text: str


class Offers(QObject):
    """Watches the run for changes; ``offer`` is the one that waits for an answer, if any.

    ``judged`` is the one whose verdict is measured or shown, until it is dismissed.
    """

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._state = state
        self.offer: Offer | None = None
        self.prediction: Prediction | None = None  # of what is offered, once the runner told
        self.judged: Offer | None = None
        self._waived: Offer | None = None  # made before automatic mode: measured only on request
        self._asked: Offer | None = None  # whose prediction was asked for
        self._settings: Settings | None = None
        self._automatic = False
        self._last: Configuration | None = None  # that ran, comparisons left out
        self._toggled = False  # the run told of a click, whose segment is to come
        self._settling = QTimer(self)
        self._settling.setSingleShot(True)
        self._settling.timeout.connect(self._look)
        self._continued = False  # a click came in time, and its segment is to come
        state.heard.connect(self._hear)
        state.segmentsChanged.connect(self._look)
        state.stateChanged.connect(self._look)
        state.configurationChanged.connect(self._hold)
        state.comparisonsChanged.connect(self._answer)

    @property
    def automatic(self) -> bool:
        """Whether a change is judged without being asked; the run goes on after it."""
        return self._automatic

    def keep_in(self, settings: Settings) -> None:
        """Remember the mode there, and take the remembered one."""
        self._settings = settings
        self._automatic = settings.auto_verdict

    def set_automatic(self, automatic: bool) -> None:
        """Judge every later change without being asked, or only offer to.

        What is offered already stays an offer: switching a mode measures nothing.
        """
        self._automatic = automatic
        self._waived = self.offer
        if self._settings is not None:
            self._settings.auto_verdict = automatic
        self._state.comparisonsChanged.emit()
        self._look()

    @property
    def known(self) -> bool:
        """Whether this session has a verdict on what is offered."""
        offer = self.offer
        return offer is not None and self._state.verdicts.compared(offer.base, offer.other)

    def accept(self) -> None:
        """Judge what is offered; it stays offered while the runner is not ready for that."""
        offer, verdicts = self.offer, self._state.verdicts
        if offer is not None and not verdicts.why_not():
            self.offer, self.judged = None, offer
            verdicts.judge(offer.base, offer.other)
            self._state.comparisonsChanged.emit()

    @property
    def answer(self) -> PairedComparison | None:
        """The newest comparison if it is the one of ``judged``."""
        newest, judged = self._state.verdicts.newest, self.judged
        return newest if judged is not None and self._is_of(newest, judged) else None

    def _is_of(self, comparison: PairedComparison | None, offer: Offer) -> bool:
        if comparison is None:
            return False
        segments = self._state.session.segments
        arms = [segments[place].configuration for place in comparison.facts["segments"]]
        return arms == [offer.base, offer.other]

    def _answer(self) -> None:
        """Turn the offer into the answer if its verdict was measured in another way."""
        state, offer = self._state, self.offer
        if offer is None or not state.live or state.verdicts.busy:
            return
        newest = state.verdicts.newest
        if newest is not None and newest.facts.get("final") and self._is_of(newest, offer):
            self.offer, self.judged = None, offer
            state.comparisonsChanged.emit()

    def dismiss(self) -> None:
        """Leave the change, or the verdict that came of it, alone."""
        self.offer = self.judged = None
        self._state.comparisonsChanged.emit()

    def _hear(self, message: protocol.AnyMessage) -> None:
        """Other runs change configurations too, an attribution say; a click is told by a note."""
        if isinstance(message, protocol.Note) and message.kind == "toggle":
            self._toggled = True
        elif isinstance(message, protocol.Predicted):
            offer = self.offer
            if offer is not None and (offer.base, offer.other) == (message.base, message.other):
                self.prediction = message.prediction
                self._state.comparisonsChanged.emit()

    def _hold(self) -> None:
        """One more click: the change is not over. Another model: nothing is left to answer."""
        now, card = self._state.configuration, self.offer or self.judged
        if card is not None and now is not None:
            same = config_edit.with_toggles(now, card.other.toggles)
            if not config_edit.ran_as(same, card.other):
                self.dismiss()
        if self._state.pending and self._settling.isActive():
            self._settling.start(SETTLE_MS)
            self._continued = True

    def _look(self) -> None:
        state = self._state
        if state.replaying or state.verdicts.busy:
            return
        if state.verdicts.resumes:
            self._toggled = True  # clicks may have waited
        if not state.active and not state.verdicts.resumes:
            self._last = None
            self._settling.stop()
            self._continued = False
        elif state.running is not None and state.running != self._last:
            self._take(state.running)
        if (
            self.automatic
            and self.offer is not None
            and self.offer is not self._waived
            and not self.known
            and not self._settling.isActive()
            and not state.pending
            and state.runner_state == "running"
        ):
            self.accept()
        else:
            self._ask_prediction()

    def _ask_prediction(self) -> None:
        """Ask once the clicks are over; where a verdict follows at once, it brings its own."""
        offer, state = self.offer, self._state
        ready = state.runner_state in ("running", "paused") and not self._settling.isActive()
        if offer is None or offer == self._asked or self.automatic or not ready or state.pending:
            return
        self._asked = offer
        state.send(protocol.Predict(base=offer.base, other=offer.other))

    def _take(self, running: Configuration) -> None:
        last, self._last = self._last, running
        toggled, self._toggled = self._toggled, False
        continued, self._continued = self._continued, self._continued and bool(self._state.pending)
        if last is None:
            if self.offer is not None or self.judged is not None:  # of an earlier run
                self.dismiss()
            return
        if not toggled:
            return
        if config_edit.with_toggles(last, running.toggles) != running:  # another model
            self.offer = None
            return
        if self.offer is not None and (self._settling.isActive() or continued):
            last = self.offer.base
        self._settling.start(SETTLE_MS)
        self.prediction = None
        self.offer = None if last == running else Offer(last, running, self._text(last, running))
        self.judged = None
        self._state.comparisonsChanged.emit()

    def _text(self, base: Configuration, other: Configuration) -> str:
        catalogue = self._state.catalogue
        names = [name for name, option in other.toggles.items() if base.toggles[name] != option]
        if catalogue is None or len(names) > NAMED:
            return f"{len(names)} toggles"
        toggles = {name: config_edit.toggle_of(catalogue, name) for name in names}
        return ", ".join(
            f"{toggle.title}: {config_edit.option_title(toggle, other.toggles[name])}"
            for name, toggle in toggles.items()
        )
