"""The window without widgets: models and controllers, connected with each other."""

from __future__ import annotations

from PySide6.QtCore import QObject

from workbench.ui.connection.runner_clock import RunnerClock
from workbench.ui.connection.runner_link import RunnerLink
from workbench.ui.controllers.attributions import Attributions
from workbench.ui.controllers.breakdowns import Breakdowns
from workbench.ui.controllers.checklists import Checklists
from workbench.ui.controllers.measurements import Measurements
from workbench.ui.controllers.next_steps import NextSteps
from workbench.ui.controllers.optimizations import Optimizations
from workbench.ui.controllers.presets import Presets
from workbench.ui.controllers.reproductions import Reproductions
from workbench.ui.controllers.run_control import RunControl
from workbench.ui.controllers.runs import Runs
from workbench.ui.controllers.sweeps import Sweeps
from workbench.ui.controllers.verdict_prompt import VerdictPrompt
from workbench.ui.controllers.verdicts import Verdicts
from workbench.ui.process.thread_pool import Tasks
from workbench.ui.settings import Settings
from workbench.ui.state.comparison import ComparisonModel
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.failures import FailureModel
from workbench.ui.state.message_router import MessageRouter
from workbench.ui.state.run import Launch, RunModel
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel


class Workspace(QObject):
    """The models and controllers of a window; a panel takes only those that it uses."""

    def __init__(
        self,
        launch: Launch | None = None,
        replaying: bool = False,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self.tasks = Tasks(self)
        clock, self._link = RunnerClock(), RunnerLink(self)
        self.theme, self.failures = ThemeModel(self), FailureModel(self)
        self.session = SessionModel(self.tasks, self.failures, clock, self)
        self.compared = ComparisonModel(self.session, self.tasks, self.failures, self)
        self.run = RunModel(self._link, self.session, launch, replaying, self)
        self.configuration = ConfigurationModel(self.run, self)
        models = self.session, self.run, self.configuration
        self.router = MessageRouter(self._link, clock, *models, self.failures, self)
        self.runs = Runs(*models, self)
        self.run_control = RunControl(*models, self.runs, self)
        self.measurements = Measurements(*models, self.runs, self)
        measured = *models, self.measurements
        self.verdicts = Verdicts(*measured, self)
        self.attributions = Attributions(*measured, self)
        self.checklists = Checklists(*measured, self.verdicts, self)
        self.breakdowns = Breakdowns(*measured, self.compared, self)
        self.verdict_prompt = VerdictPrompt(*measured, self.verdicts, self)
        self.next_steps = NextSteps(*models, self.verdicts, self)
        self.presets = Presets(self.run, self.configuration, self.failures, self)
        self.optimizations = Optimizations(*measured, self.presets, self)
        self.sweeps = Sweeps(*measured, self.verdicts, self.presets, self)
        self.reproductions = Reproductions(*measured, self)

    def keep_in(self, settings: Settings) -> None:
        """Store the user's choices there, and load those that are stored."""
        self.verdict_prompt.keep_in(settings)
        self.runs.keep_in(settings)
        self.verdicts.keep_in(settings)
        self.presets.keep_in(settings)

    def close(self) -> None:
        """End the runner, the threads and the timers; return when they are gone."""
        self.configuration.close()
        self.run.close()
        self.tasks.close()
        self.session.close_journal()
