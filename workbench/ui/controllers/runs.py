"""Runs that the window starts: their check of each segment's numbers, and their pairing."""

from __future__ import annotations

from PySide6.QtCore import QObject

from sessions.model import Configuration
from workbench import calibration, protocol
from workbench.ui.settings import Settings
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel


class Runs(QObject):
    """Starter of runs of the edited configuration, with the settings of their measurement."""

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._run, self._configuration = session, run, configuration
        self.pairing_share = protocol.PAIRING_SHARE  # share of a run's time
        self.checks_numbers = False  # check each segment against a reference, in a pause
        self._settings: Settings | None = None

    def keep_in(self, settings: Settings) -> None:
        """Load the stored settings of runs, and store later changes."""
        self._settings = settings
        self.pairing_share, self.checks_numbers = settings.pairing_share, settings.check_numbers

    def set_pairing_share(self, share: float) -> None:
        """Set the share of the time in which future runs measure their baseline; 0: none."""
        self.pairing_share = share
        if self._settings is not None:
            self._settings.pairing_share = share

    def set_checks_numbers(self, checks: bool) -> None:
        """Set whether the segments of future runs are checked."""
        self.checks_numbers = checks
        if self._settings is not None:
            self._settings.check_numbers = checks
        self._run.stateChanged.emit()

    def start(self) -> None:
        """Run the edited configuration."""
        edited = self._configuration.edited
        if edited is not None and self._run.state == "idle" and not self._run.is_requested:
            self._session.show_live()
            self._session.set_follow(True)
            self._run.send(self.start_command(edited))

    def start_command(self, configuration: Configuration) -> protocol.Start:
        """Return the command that runs a configuration, paired with the baseline of the session."""
        session, catalogue = self._session, self._configuration.catalogue
        command = protocol.Start(
            configuration=configuration,
            check="steady" if self.checks_numbers else "never",
            pairing_share=self.pairing_share,
        )
        segments = session.recorder.session.segments
        if session.live and session.baseline_settled:  # not a study's
            command.baseline = segments[session.baseline].configuration
        return command if catalogue is None else calibration.respected(catalogue, command)
