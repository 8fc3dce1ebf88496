"""What the window asks to be checked: each segment's numbers, or all of a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from PySide6.QtCore import QObject

from sessions.model import Configuration, Study
from sessions.studies import checklist
from workbench import calibration, protocol
from workbench.ui.controllers import pending_changes

if TYPE_CHECKING:
    from workbench.ui.settings import Settings
    from workbench.ui.state import AppState


class Checklists(QObject):
    """Asks the runner to check a configuration; what comes back is in the session's ``studies``."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._state = state
        self.expect_speedup = 0.0  # 0: not to be slower
        self._settings: Settings | None = None
        self._each_segment = False

    @property
    def each_segment(self) -> bool:
        """Whether a run compares the numbers of each segment with a reference, in a pause."""
        return self._each_segment

    def keep_in(self, settings: Settings) -> None:
        """Remember there whether segments are checked, and take what is remembered."""
        self._settings = settings
        self._each_segment = settings.check_numbers

    def set_each_segment(self, checks: bool) -> None:
        """Check the segments of the runs to come, or leave them alone."""
        self._each_segment = checks
        if self._settings is not None:
            self._settings.check_numbers = checks
        self._state.stateChanged.emit()

    def start_of(self, configuration: Configuration) -> protocol.Start:
        """The command that runs a configuration, and checks its segments where that is wanted."""
        start = protocol.Start(
            configuration=configuration, check="steady" if self._each_segment else "never"
        )
        return self._state.verdicts.respected(start)

    @property
    def newest(self) -> Study | None:
        """The last checklist of the session that is shown."""
        return checklist.newest(self._state.session)

    @property
    def checking(self) -> bool:
        """Whether the newest checklist is being done now."""
        newest, state = self.newest, self._state
        return (
            newest is not None
            and state.live
            and state.active
            and newest is state.session.studies[-1]
            and not checklist.complete(newest)
        )

    def why_not(self) -> str:
        """Why nothing can be checked; empty where it can."""
        state = self._state
        if state.replaying:
            return "This is a replay; open the window without --replay to check."
        if self.checking:
            return "A configuration is being checked."
        if state.runner_state not in ("idle", "running", "paused"):
            return "The runner is not ready."
        return pending_changes.problem(state)

    def check(self) -> None:
        """Check the configuration being edited."""
        configuration = self._state.configuration
        if configuration is not None and not self.why_not():
            self._ask(configuration, self.expect_speedup, self._state.verdicts.budget_s)

    def check_longer(self) -> None:
        """Check what the newest checklist left undecided, with the budget that should decide it."""
        study = self.newest
        budget_s = None if study is None else checklist.budget_s(study)
        if study is None or budget_s is None or self.why_not():
            return
        text = str(study.asked["configuration"])
        configuration = msgspec.json.decode(text, type=Configuration)
        self._ask(configuration, float(study.asked["expect_speedup"]), budget_s)

    def _ask(self, configuration: Configuration, expect_speedup: float, budget_s: float) -> None:
        state = self._state
        if state.catalogue is None:
            return
        command = protocol.Validate(
            configuration=configuration,
            expect_speedup=expect_speedup or None,
            budget_s=budget_s,
        )
        state.perform(calibration.respected(state.catalogue, command))
