"""Profiles that the window requests, and the file of their trace."""

from __future__ import annotations

from PySide6.QtCore import QObject

from sessions.model import Study
from sessions.studies import breakdown
from workbench import protocol
from workbench.ui.controllers.measurements import Measurements
from workbench.ui.state.comparison import ComparisonModel
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel

STEPS = 3


class Breakdowns(QObject):
    """Requests for profiles; their results are in the session's ``studies``."""

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        measurements: Measurements,
        compared: ComparisonModel,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._run = session, run
        self._configuration, self._compared = configuration, compared
        self._measurements = measurements

    @property
    def busy(self) -> bool:
        """True while a profile that was requested is not over."""
        return self._measurements.is_pending(protocol.Profile)

    @property
    def newest(self) -> Study | None:
        """The last profile of the shown session."""
        profiles = breakdown.profiles(self._session.shown)
        return profiles[-1] if profiles else None

    def comparable(self, shown: Study) -> list[tuple[str, Study]]:
        """Return the session's other profiles and those of the compared sessions, with titles."""
        session_profiles = breakdown.profiles(self._session.shown)
        titled = [
            (f"{number}: {study.title}", study)
            for number, study in enumerate(session_profiles, 1)
            if study is not shown
        ]
        for session in self._compared.sessions:
            titled += [
                (f"{session.title}: {study.title}", study) for study in breakdown.profiles(session)
            ]
        return titled

    def why_not(self) -> str:
        """Return why nothing can be profiled; empty if a profile is possible."""
        if why := self._run.why_not("profile", "Steps are being profiled." if self.busy else ""):
            return why
        if self._configuration.edited is None:
            return "The runner offers no model."
        return self._configuration.problem()

    def profile(self, trace: str = "") -> None:
        """Profile the edited configuration; ``trace`` is a file for the Chrome trace."""
        if self._configuration.edited is None or self.why_not():
            return
        self._measurements.perform(
            protocol.Profile(
                configurations=[self._configuration.edited],
                steps=STEPS,
                traces=[trace] if trace else [],
            )
        )
