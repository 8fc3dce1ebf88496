"""The base of controllers that have configurations judged."""

from __future__ import annotations

from PySide6.QtCore import QObject

from workbench.ui.controllers.verdicts import Verdicts
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel


class VerdictUser(QObject):
    """A controller that reads the session, the run and the configuration, and asks for verdicts."""

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        verdicts: Verdicts,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._run = session, run
        self._configuration, self._verdicts = configuration, verdicts
