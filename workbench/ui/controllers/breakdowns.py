"""Profiles as the window asks for them: of what, into which file, and why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QObject

from sessions.model import Study
from sessions.studies import breakdown
from workbench import protocol
from workbench.ui.controllers import pending_changes

if TYPE_CHECKING:
    from workbench.ui.state import AppState

STEPS = 3


class Breakdowns(QObject):
    """Asks the runner for profiles; what comes back is in the session's ``studies``."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._state = state

    @property
    def newest(self) -> Study | None:
        """The last profile of the session that is shown."""
        found = breakdown.profiles(self._state.session)
        return found[-1] if found else None

    def others(self, shown: Study) -> list[tuple[str, Study]]:
        """What a profile can be compared with: the session's other ones, and those beside it."""
        state = self._state
        own = breakdown.profiles(state.session)
        found = [
            (f"{number}: {study.title}", study)
            for number, study in enumerate(own, 1)
            if study is not shown
        ]
        for session in state.compared.sessions:
            found += [
                (f"{session.title}: {study.title}", study) for study in breakdown.profiles(session)
            ]
        return found

    def why_not(self) -> str:
        """Why nothing can be profiled; empty where it can."""
        state = self._state
        if state.replaying:
            return "This is a replay; open the window without --replay to profile."
        if state.runner_state not in ("idle", "running", "paused"):
            return "The runner is not ready."
        if state.configuration is None:
            return "The runner offers no model."
        return pending_changes.problem(state)

    def profile(self, trace: str = "") -> None:
        """Profile the configuration being edited; ``trace`` is a file for the Chrome trace."""
        state = self._state
        if state.configuration is None or self.why_not():
            return
        state.perform(
            protocol.Profile(
                configurations=[state.configuration],
                steps=STEPS,
                traces=[trace] if trace else [],
            )
        )
