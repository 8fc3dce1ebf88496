"""Validation checklists that the window requests."""

from __future__ import annotations

import msgspec
from PySide6.QtCore import QObject

from sessions.model import Configuration, Study
from sessions.studies import checklist
from workbench import calibration, protocol
from workbench.ui.controllers.measurements import Measurements
from workbench.ui.controllers.verdict_user import VerdictUser
from workbench.ui.controllers.verdicts import Verdicts
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel


class Checklists(VerdictUser):
    """Requests to check a configuration; their results are in the session's ``studies``."""

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        measurements: Measurements,
        verdicts: Verdicts,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(session, run, configuration, verdicts, parent)
        self._measurements = measurements
        self.expect_speedup = 0.0  # 0: it must not be slower

    @property
    def newest(self) -> Study | None:
        """The last checklist of the shown session."""
        return checklist.newest(self._session.shown)

    @property
    def longer_s(self) -> float | None:
        """Budget that should decide the newest checklist's undecided checks.

        None if all checks are decided, or if the session does not name the checked configuration.
        """
        study = self.newest
        return None if study is None or _checked(study) is None else checklist.budget_s(study)

    @property
    def checking(self) -> bool:
        """True while the newest checklist is being worked through."""
        newest = self.newest
        return (
            newest is not None
            and self._session.live
            and self._measurements.is_pending(protocol.Validate)
            and newest is self._session.shown.studies[-1]
            and not checklist.complete(newest)
        )

    def why_not(self) -> str:
        """Return why nothing can be checked; empty if a check is possible."""
        is_pending = self._measurements.is_pending(protocol.Validate)
        pending = "A configuration is being checked." if is_pending else ""
        return self._run.why_not("check", pending) or self._configuration.problem()

    def check(self) -> None:
        """Check the edited configuration."""
        configuration = self._configuration.edited
        if configuration is not None and not self.why_not():
            self._validate(configuration, self.expect_speedup, self._verdicts.budget_s)

    def check_longer(self) -> None:
        """Repeat undecided checks of the newest checklist, with a budget that should suffice."""
        study, budget_s = self.newest, self.longer_s
        configuration = None if study is None else _checked(study)
        if study is None or configuration is None or budget_s is None or self.why_not():
            return
        expected = float(study.request.get("expect_speedup") or 0.0)
        self._validate(configuration, expected, budget_s)

    def _validate(
        self, configuration: Configuration, expect_speedup: float, budget_s: float
    ) -> None:
        if self._configuration.catalogue is None:
            return
        command = protocol.Validate(
            configuration=configuration,
            expect_speedup=expect_speedup or None,
            budget_s=budget_s,
        )
        self._measurements.perform(calibration.respected(self._configuration.catalogue, command))


def _checked(study: Study) -> Configuration | None:
    """Return the configuration that a checklist checked; None if its session does not name it."""
    try:
        text = str(study.request.get("configuration", ""))
        return msgspec.json.decode(text, type=Configuration)
    except msgspec.MsgspecError:
        return None
