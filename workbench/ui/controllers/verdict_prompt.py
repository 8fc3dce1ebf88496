"""A verdict offered after toggles were changed in a run; in automatic mode it starts at once.

Several quick clicks are one change: its base is the configuration before the first click.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QObject, QTimer

from sessions.model import Configuration, PairedComparison, Prediction
from workbench import protocol
from workbench.ui.controllers.measurements import Measurements
from workbench.ui.controllers.verdicts import Verdicts
from workbench.ui.settings import Settings
from workbench.ui.state import config_edit
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel

SETTLE_MS = 1500  # pause after the last click
NAMED = 2  # toggles; more are counted


@dataclass(frozen=True)
class Offer:
    """A change of toggles that can be judged: ``text`` names the chosen options."""

    base: Configuration
    other: Configuration
    text: str
    count: int = 1  # number of toggles that changed


class VerdictPrompt(QObject):
    """Offer to judge a change of toggles; ``offer`` is the change that waits for an answer, if any.

    ``judged`` is the change whose verdict is measured or shown, until it is dismissed.
    """

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        measurements: Measurements,
        verdicts: Verdicts,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._run = session, run
        self._configuration, self._verdicts = configuration, verdicts
        self._measurements = measurements
        self.offer: Offer | None = None
        self.prediction: Prediction | None = None  # the prediction for ``offer``, once received
        self.judged: Offer | None = None
        self._waived: Offer | None = None  # made before automatic mode: measured only on request
        self._predicted: Offer | None = None  # the offer whose prediction was requested
        self._settings: Settings | None = None
        self._automatic = False
        self._last: Configuration | None = None  # last run outside of comparisons
        self._toggled = False  # a click was reported; its segment follows
        self._settling = QTimer(self)
        self._settling.setSingleShot(True)
        self._settling.timeout.connect(self._update)
        self._continued = False  # another click came in time; its segment follows
        run.received.connect(self._on_message)
        session.segmentsChanged.connect(self._update)
        run.stateChanged.connect(self._update)
        configuration.editedChanged.connect(self._hold)
        session.comparisonsChanged.connect(self._answer)
        session.begun.connect(self.dismiss)

    @property
    def automatic(self) -> bool:
        """True if every change is judged without a question; the run goes on after it."""
        return self._automatic

    def keep_in(self, settings: Settings) -> None:
        """Load the mode from these settings, and store later changes there."""
        self._settings = settings
        self._automatic = settings.auto_verdict

    def set_automatic(self, automatic: bool) -> None:
        """Judge every later change automatically, or only offer to.

        An existing offer stays an offer: changing the mode measures nothing.
        """
        self._automatic = automatic
        self._waived = self.offer
        if self._settings is not None:
            self._settings.auto_verdict = automatic
        self._session.comparisonsChanged.emit()
        self._update()

    @property
    def known(self) -> bool:
        """True if this session has a verdict on the offered pair."""
        offer = self.offer
        return offer is not None and self._verdicts.compared(offer.base, offer.other)

    def accept(self) -> None:
        """Judge the offered pair; the offer stays while the runner is not ready."""
        offer, verdicts = self.offer, self._verdicts
        if offer is not None and not verdicts.why_not():
            self.offer, self.judged = None, offer
            verdicts.judge(offer.base, offer.other)
            self._session.comparisonsChanged.emit()

    @property
    def answer(self) -> PairedComparison | None:
        """The newest comparison if it is the one of ``judged``."""
        newest, judged = self._verdicts.newest, self.judged
        return newest if judged is not None and self._is_of(newest, judged) else None

    def _is_of(self, comparison: PairedComparison | None, offer: Offer) -> bool:
        if comparison is None:
            return False
        segments = self._session.shown.segments
        arms = [segments[index].configuration for index in comparison.segment_indices]
        return arms == [offer.base, offer.other]

    def _answer(self) -> None:
        """Turn the offer into the answer if its verdict was measured by another request."""
        offer = self.offer
        if offer is None or not self._session.live or self._verdicts.busy:
            return
        newest = self._verdicts.newest
        if newest is not None and newest.facts.get("final") and self._is_of(newest, offer):
            self.offer, self.judged = None, offer
            self._session.comparisonsChanged.emit()

    def dismiss(self) -> None:
        """Dismiss the offer, or its verdict."""
        self.offer = self.judged = None
        self._session.comparisonsChanged.emit()

    def _on_message(self, message: protocol.AnyMessage) -> None:
        """Record clicks by their notes: an attribution changes configurations without a click."""
        if isinstance(message, protocol.Note) and message.kind == "toggle":
            self._toggled = True
        elif isinstance(message, protocol.Predicted):
            offer = self.offer
            if offer is not None and (offer.base, offer.other) == (message.base, message.other):
                self.prediction = message.prediction
                self._session.comparisonsChanged.emit()

    def _hold(self) -> None:
        """Wait while the user goes on clicking; drop the offer if the model changes."""
        edited, card = self._configuration.edited, self.offer or self.judged
        if card is not None and edited is not None:
            same = config_edit.with_toggles(edited, card.other.toggles)
            if not config_edit.ran_as(same, card.other):
                self.dismiss()
        if self._configuration.pending and self._settling.isActive():
            self._settling.start(SETTLE_MS)
            self._continued = True

    def _update(self) -> None:
        if self._run.replaying or self._measurements.busy:
            return
        if self._measurements.resumes:
            self._toggled = True  # clicks may have waited
        if not self._run.active and not self._measurements.resumes:
            self._last = None
            self._settling.stop()
            self._continued = False
        elif self._run.running is not None and self._run.running != self._last:
            self._on_run_changed(self._run.running)
        if (
            self.automatic
            and self.offer is not None
            and self.offer is not self._waived
            and not self.known
            and not self._settling.isActive()
            and not self._configuration.pending
            and self._run.state == "running"
        ):
            self.accept()
        else:
            self._ask_prediction()

    def _ask_prediction(self) -> None:
        """Request a prediction after the last click, unless a verdict follows at once."""
        offer = self.offer
        ready = self._run.state in ("running", "paused") and not self._settling.isActive()
        if (
            offer is None
            or offer == self._predicted
            or self.automatic
            or not ready
            or self._configuration.pending
        ):
            return
        self._predicted = offer
        self._run.send(protocol.Predict(base=offer.base, other=offer.other))

    def _on_run_changed(self, running: Configuration) -> None:
        last, self._last = self._last, running
        toggled, self._toggled = self._toggled, False
        continued, self._continued = (
            self._continued,
            self._continued and bool(self._configuration.pending),
        )
        if last is None:
            if self.offer is not None or self.judged is not None:  # they belong to an earlier run
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
        self.offer = None if last == running else self._offer(last, running)
        self.judged = None
        self._session.comparisonsChanged.emit()

    def _offer(self, base: Configuration, other: Configuration) -> Offer:
        names = [name for name, option in other.toggles.items() if base.toggles[name] != option]
        return Offer(base, other, self._text(names, other), len(names))

    def _text(self, names: Sequence[str], other: Configuration) -> str:
        catalogue = self._configuration.catalogue
        if catalogue is None or len(names) > NAMED:
            return f"{len(names)} toggles"
        toggles = {name: config_edit.toggle_of(catalogue, name) for name in names}
        return ", ".join(
            f"{toggle.title}: {config_edit.option_title(toggle, other.toggles[name])}"
            for name, toggle in toggles.items()
        )
