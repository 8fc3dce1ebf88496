"""The edited configuration, and what the runner offers and blocks."""

from __future__ import annotations

from PySide6.QtCore import QObject, QTimer, Signal
from PySide6.QtGui import QUndoStack

from sessions.model import Configuration
from workbench import protocol
from workbench.ui.state import config_edit
from workbench.ui.state.run import RunModel
from workbench.ui.state.undo import Choice, Choices

CHECK_DELAY_MS = 120  # pause after the last edit


class ConfigurationModel(QObject):
    """The runner's catalogue, the edited configuration, and its differences from the run."""

    catalogueChanged = Signal()
    editedChanged = Signal()
    availabilityChanged = Signal()

    def __init__(self, run: RunModel, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._run = run
        self.catalogue: protocol.Catalogue | None = None
        self.edited: Configuration | None = None  # the one that Run would start
        self.availability: protocol.Availability | None = None
        self.undo = QUndoStack(self)
        self.refused = False  # a toggle of the run failed, and none was chosen since
        self._check_timer = QTimer(self, singleShot=True)
        self._check_timer.timeout.connect(self._send_check)

    def close(self) -> None:
        """Stop asking the runner about availability."""
        self._check_timer.stop()
        self.undo.blockSignals(True)  # it would emit signals while it is destroyed

    # Editing

    def edit(self, configuration: Configuration) -> None:
        """Set the edited configuration; the runner reports the options that it blocks."""
        if configuration != self.edited:
            was_away, self.edited = self.away, configuration
            if was_away and not self.away:
                self._apply(self.pending)
            self.editedChanged.emit()
            self.check()

    def set_toggle(self, name: str, option: str) -> None:
        """Choose an option: at once when a run is in progress, else for the next run."""
        assert self.catalogue is not None
        toggle = config_edit.toggle_of(self.catalogue, name)
        self.choose({name: option}, f"{toggle.title}: {config_edit.option_title(toggle, option)}")

    def choose(self, choices: Choices, text: str) -> None:
        """Make several choices as one step of undo: toggles, ``workload``, or ``batch``."""
        assert self.edited is not None
        current = config_edit.choices(self.edited)
        before = {name: current[name] for name in choices if current.get(name) != choices[name]}
        if before:
            after = {name: choices[name] for name in before}
            self.undo.push(Choice(text, before, after, self._make))

    def revert(self) -> None:
        """Revert the toggles that are chosen but not running."""
        if (running := self._run.continued) is not None:
            self.choose({name: running.toggles[name] for name in self.pending}, "Revert")

    def revert_refused(self) -> None:
        """Revert the toggles that the run refused or could not be built with."""
        running = self._run.running
        if self.pending and self.edited is not None and running is not None:
            self.edited = config_edit.with_toggles(self.edited, running.toggles)
            self._drop_reverted(config_edit.choices(self.edited))
            self.check()

    def _drop_reverted(self, choices: Choices) -> None:
        """Remove the last steps of undo that would change nothing."""
        while isinstance(last := self.undo.command(self.undo.index() - 1), Choice):
            if not last.drop_if_reverted(self.undo, choices):
                break

    def set_catalogue(self, catalogue: protocol.Catalogue) -> None:
        """Set the runner's catalogue; keep edited values that it offers."""
        self.catalogue = catalogue
        if self.edited is None or config_edit.missing(catalogue, self.edited):
            self.edited = config_edit.first(catalogue)
        else:
            self.edited = config_edit.adopt(catalogue, self.edited)
        self.check()

    def _make(self, choices: Choices) -> None:
        assert self.edited is not None and self.catalogue is not None
        choices = dict(choices)
        configuration = self.edited
        workload = choices.pop("workload", None)
        known = config_edit.family_of(self.catalogue, configuration.family).workloads
        if workload in known:  # a step of undo may be of another family
            configuration = config_edit.with_workload(self.catalogue, configuration, workload)
        if (batch := choices.pop("batch", None)) is not None:
            configuration = config_edit.with_setting(configuration, "batch", int(batch))
        self.edit(config_edit.with_toggles(configuration, choices))
        self.refused = False
        if not self.away:
            self._apply(choices)

    def _apply(self, toggles: Choices) -> None:
        if toggles and self._run.active and not self._run.measures:
            self._run.send(protocol.Apply(toggles=toggles))

    # Against the run in progress

    @property
    def away(self) -> bool:
        """True if the run in progress has another family or workload than is edited."""
        running, edited = self._run.continued, self.edited
        return (
            running is not None
            and edited is not None
            and not config_edit.of_one_run(running, edited)
        )

    @property
    def pending(self) -> Choices:
        """Toggles that were chosen but that the run in progress does not have yet."""
        running, edited = self._run.continued, self.edited
        if running is None or edited is None or self.away:
            return {}
        runs = running.toggles  # none while kernels are timed
        return {
            name: option
            for name, option in edited.toggles.items()
            if runs.get(name, option) != option
        }

    def left_behind(self) -> list[str]:
        """Return the names of edited parts that the run in progress will not have."""
        running, edited = self._run.continued, self.edited
        if running is None or edited is None or config_edit.missing(self.catalogue, running):
            return []
        if running.family != edited.family:
            parts = ["family"]
        else:
            parts = config_edit.other_parts(edited, running)
            if running.preset == edited.preset and running.workload == edited.workload:
                parts += [
                    f"settings.{name}"
                    for name, value in edited.settings.items()
                    if running.settings.get(name, value) != value
                ]
        return [*parts, "toggles"] if self.away else parts

    # Availability

    def check(self) -> None:
        """Ask the runner, after a short delay, which options the configuration blocks."""
        if self._run.connected and not self._run.replaying:
            self._check_timer.start(CHECK_DELAY_MS)

    def blocked(self, toggle: str) -> dict[str, protocol.Blocked]:
        """Return the options of a toggle that cannot be used now, with the reasons."""
        return {} if self.availability is None else self.availability.blocked.get(toggle, {})

    def unusable(self) -> Choices:
        """Return the toggles whose option is blocked, each with the option that does nothing."""
        availability, catalogue = self.availability, self.catalogue
        if availability is None or catalogue is None:
            return {}
        chosen = availability.configuration.toggles
        return {
            toggle.name: toggle.options[0].name
            for toggle in catalogue.toggles
            if chosen.get(toggle.name) in availability.blocked.get(toggle.name, {})
        }

    def problems(self) -> list[str]:
        """Return why the configuration cannot start: a sentence a toggle, or the runner's."""
        availability, catalogue = self.availability, self.catalogue
        if availability is None or catalogue is None or not availability.problems:
            return []
        if config_edit.lacks_own_model(availability.configuration):
            return ["Choose the file of your model: browse for it, or drop it on the window."]
        sentences = []
        for name in self.unusable():
            toggle = config_edit.toggle_of(catalogue, name)
            option = availability.configuration.toggles[name]
            why = availability.blocked[name][option]
            title = config_edit.option_title(toggle, option)
            sentences.append(f"{toggle.title}: {title} cannot be used: {why.reason_with_fix}")
        return sentences or availability.problems

    def problem(self) -> str:
        """Return the first reason why the configuration cannot start; empty where it can."""
        return next(iter(self.problems()), "")

    def _send_check(self) -> None:
        if self.edited is not None and self._run.state not in ("none", "dead"):
            self._run.send(protocol.Check(configuration=self.edited))
