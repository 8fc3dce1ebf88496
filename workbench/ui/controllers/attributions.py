"""Attributions that the window requests: their toggles, mode and budget."""

from __future__ import annotations

import msgspec
from PySide6.QtCore import QObject

from sessions.model import Study
from sessions.studies.attribution import words as attribution_words
from sessions.studies.attribution.design import MOST_FACTORIAL
from workbench import calibration, protocol
from workbench.ui.controllers.measurements import Measurements
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel

BUDGET_S = 60.0
MODES = {
    "ladder": "Ladder: one after the other",
    "leave-one-out": "Leave one out",
    "factorial": "Every combination, with interactions",
    "shapley": "Shares from sampled orders",
}


class Attributions(QObject):
    """Requests for attributions; their results are in the session's ``studies``."""

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        measurements: Measurements,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._run, self._configuration = session, run, configuration
        self._measurements = measurements
        self.budget_s = BUDGET_S
        self.mode = "ladder"
        self._left_out: set[str] = set()
        self._order: list[str] = []  # toggles that the user ordered; the others follow
        self._before: Study | None = None  # the newest at the time of the request

    @property
    def all(self) -> list[Study]:
        """The attributions of the shown session, the oldest first."""
        return attribution_words.attributions(self._session.shown)

    @property
    def newest(self) -> Study | None:
        """The last attribution of the shown session."""
        return attribution_words.newest(self._session.shown)

    @property
    def measuring(self) -> bool:
        """True while the newest attribution is being measured."""
        return self.busy and self._session.live and self.newest is not self._before

    @property
    def busy(self) -> bool:
        """True from the request of an attribution until its end."""
        return self._measurements.is_pending(protocol.Attribute)

    def candidates(self) -> dict[str, str]:
        """Return the toggles of the edited configuration that do something: option by name.

        Their order is the order in which a ladder adds them: the catalogue's, unless the user
        moved them.
        """
        catalogue, edited = self._configuration.catalogue, self._configuration.edited
        if catalogue is None or edited is None:
            return {}
        chosen = edited.toggles
        names = [
            toggle.name
            for toggle in catalogue.toggles
            if chosen.get(toggle.name, toggle.options[0].name) != toggle.options[0].name
        ]
        rank = {name: index for index, name in enumerate(self._order)}
        names.sort(key=lambda name: rank.get(name, len(rank)))
        return {name: chosen[name] for name in names}

    def move(self, name: str, by: int) -> None:
        """Move a candidate down by so many rows, up if negative."""
        names = list(self.candidates())
        at = names.index(name)
        names.insert(max(0, at + by), names.pop(at))
        self._order = names

    def chosen(self) -> dict[str, str]:
        """Return the candidates that take part, in order."""
        return {n: o for n, o in self.candidates().items() if n not in self._left_out}

    def choose(self, name: str, take_part: bool) -> None:
        """Include a candidate, or leave it unchanged in the base."""
        (self._left_out.discard if take_part else self._left_out.add)(name)

    def why_not(self) -> str:
        """Return why nothing can be attributed now; empty if something can."""
        count = len(self.chosen())
        pending = "An attribution is being measured." if self.busy else ""
        if why := self._run.why_not("measure", pending) or self._configuration.problem():
            return why
        if not count:
            return "Switch at least one toggle on, and tick it here."
        if self.mode == "factorial" and count > MOST_FACTORIAL:
            return (
                f"{count} toggles make {2**count} arms; tick at most {MOST_FACTORIAL}, "
                "or choose shares from sampled orders."
            )
        return ""

    def run(self) -> None:
        """Attribute the chosen toggles, against the configuration with them off."""
        catalogue, edited = self._configuration.catalogue, self._configuration.edited
        toggles = self.chosen()
        if catalogue is None or edited is None or self.why_not():
            return
        off_options = {t.name: t.options[0].name for t in catalogue.toggles if t.name in toggles}
        base = msgspec.structs.replace(edited, toggles={**edited.toggles, **off_options})
        command = protocol.Attribute(
            base=base,
            toggles=toggles,
            mode=self.mode,
            budget_s=self.budget_s,
            seed=base.seed,
        )
        self._before = attribution_words.newest(self._session.recorder.session)
        self._measurements.perform(calibration.respected(catalogue, command))
