"""Searches for the best configuration: goal, limits and toggles of a search; Apply and Save."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import QObject

from sessions.model import Study
from sessions.studies.optimization import words as optimization_words
from sessions.studies.optimization.space import BATCH, TIME
from sessions.verdicts.work import makes_other_model
from workbench import calibration, protocol
from workbench.ui.controllers.measurements import Measurements
from workbench.ui.controllers.presets import Presets
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import NOT_READY, RunModel
from workbench.ui.state.session import SessionModel

BUDGET_S = 600.0
GIB = 2**30
OBJECTIVES = {"time": "Least step time", "memory": "Least memory", "energy": "Least energy"}


class Optimizations(QObject):
    """Requests for optimizations; their results are in the session's ``studies``."""

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        measurements: Measurements,
        presets: Presets,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._run, self._configuration = session, run, configuration
        self._measurements, self._presets = measurements, presets
        self.budget_s = BUDGET_S
        self.objective = TIME
        self.memory_limit_gib = 0.0  # 0: no limit
        self.excluded: set[str] = set()

    @property
    def all(self) -> list[Study]:
        """The optimizations of the shown session, the oldest first."""
        return optimization_words.optimizations(self._session.shown)

    @property
    def busy(self) -> bool:
        """True while an optimization that was requested is not over."""
        return self._measurements.is_pending(protocol.Optimize)

    def searched(self) -> dict[str, str]:
        """Return the titles of the toggles that can be searched, by name."""
        catalogue = self._configuration.catalogue
        toggles = [] if catalogue is None else catalogue.toggles
        return {
            toggle.name: toggle.title for toggle in toggles if not makes_other_model(toggle.name)
        }

    def exclude(self, name: str, is_searched: bool) -> None:
        """Search a toggle, or leave it unchanged."""
        (self.excluded.discard if is_searched else self.excluded.add)(name)

    def why_not(self) -> str:
        """Return why nothing can be searched now; empty if it can."""
        pending = "An optimization is being measured." if self.busy else ""
        if why := self._run.why_not("measure", pending) or self._configuration.problem():
            return why
        if self.excluded >= self.searched().keys():
            return "Choose at least one toggle for the search."
        return ""

    def run(self) -> None:
        """Search for the best configuration, from the one that is being edited."""
        catalogue, edited = self._configuration.catalogue, self._configuration.edited
        if edited is None or catalogue is None or self.why_not():
            return
        limit = self.memory_limit_gib * GIB
        command = protocol.Optimize(
            base=edited,
            objective=self.objective,  # type: ignore[arg-type]
            memory_limit=limit or None,
            budget_s=self.budget_s,
            exclude=sorted(self.excluded),
            seed=edited.seed,
        )
        self._measurements.perform(calibration.respected(catalogue, command))

    # Results

    def why_not_apply(self, study: Study, row: Mapping[str, Any]) -> str:
        """Return why a configuration of a study cannot be activated; empty if it can."""
        request, edited = study.request, self._configuration.edited
        if self._run.replaying:
            return "This is a replay; open the window without --replay to change toggles."
        if edited is None or self._configuration.catalogue is None:
            return NOT_READY
        if (edited.family, edited.workload) != (request.get("family"), request.get("workload")):
            return (
                "It belongs to another model or workload: first choose "
                f"{request.get('family')} {request.get('workload')} in Build."
            )
        changed = optimization_words.changed_options(row)
        unknown = {option for option in changed if not option.startswith(BATCH)} - self._known()
        if unknown:
            return f"This runner has no {', '.join(sorted(unknown))}."
        chosen = {**edited.toggles, "batch": str(edited.settings.get("batch"))}
        if self._choices(study, row).items() <= chosen.items():
            return "It is chosen already."
        return ""

    def _choices(self, study: Study, row: Mapping[str, Any]) -> dict[str, str]:
        """Return the toggles that a configuration chooses, and its batch if that was searched."""
        toggles, known = optimization_words.toggles_of(study, row), self._known()
        choices = {name: o for name, o in toggles.items() if f"{name}={o}" in known}
        batch = optimization_words.batch_of(study, row)
        return choices if batch is None else {**choices, "batch": str(batch)}

    def apply(self, study: Study, row: Mapping[str, Any]) -> None:
        """Choose the toggles of a configuration, as one step of undo."""
        if not self.why_not_apply(study, row):
            text = f"Optimized: {self._session.titled(str(row['title']))}"
            self._configuration.choose(self._choices(study, row), text)

    def save(self, study: Study, row: Mapping[str, Any]) -> str:
        """Save the toggles of a configuration as a toggle set; return its name."""
        request = study.request
        name = f"Best {request.get('family')} {request.get('workload')}"
        toggles = optimization_words.toggles_of(study, row)
        return self._presets.add(name, toggles)

    def _known(self) -> set[str]:
        """Return NAME=OPTION of everything that the runner can switch."""
        catalogue = self._configuration.catalogue
        toggles = [] if catalogue is None else catalogue.toggles
        return {f"{toggle.name}={o.name}" for toggle in toggles for o in toggle.options}
