"""Toggle sets in the window: the runner's, and the user's own.

The runner resolves a toggle set for the edited configuration. The resolved options are chosen as a
single step of undo, and the window shows which preferred options were left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from sessions.model import Configuration
from workbench import presets as files
from workbench import protocol
from workbench.ui.settings import Settings
from workbench.ui.state import config_edit
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.failures import FailureModel
from workbench.ui.state.run import NOT_READY, RunModel
from workbench.ui.state.undo import Change, Choices


@dataclass(frozen=True)
class Outcome:
    """Result of applying a toggle set: a sentence, and a sentence for each option left out."""

    text: str
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Request:
    title: str
    configuration: Configuration  # includes all options that the toggle set prefers
    names: tuple[str, ...]  # names of the toggles that it sets
    unknown: tuple[str, ...]  # sentences about toggles that the runner lacks


class Presets(QObject):
    """Toggle sets: ``own`` are the user's sets by name, ``outcome`` that of the last applied."""

    changed = Signal()

    def __init__(
        self,
        run: RunModel,
        configuration: ConfigurationModel,
        failures: FailureModel,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._run, self._configuration, self._failures = run, configuration, failures
        self.own: dict[str, Choices] = {}
        self.outcome: Outcome | None = None
        self._chosen: Configuration | None = None  # the choice that ``outcome`` describes
        self._request: _Request | None = None
        self._settings: Settings | None = None
        run.received.connect(self._answered)
        configuration.editedChanged.connect(self._dismiss_if_edited)

    def keep_in(self, settings: Settings) -> None:
        """Store the user's toggle sets there, and load those that are stored."""
        self._settings = settings
        self.own = settings.toggle_presets

    @property
    def offered(self) -> list[protocol.TogglePreset]:
        """The runner's toggle sets."""
        catalogue = self._configuration.catalogue
        return [] if catalogue is None else catalogue.presets

    def why_not(self) -> str:
        """Return why no toggle set can be applied or saved; empty if it is possible."""
        if self._run.replaying:
            return "This is a replay; open the window without --replay to change toggles."
        if self._configuration.edited is None or self._run.state in ("none", "starting", "dead"):
            return NOT_READY
        return ""

    # Applying

    def apply(self, preset: protocol.TogglePreset) -> None:
        """Choose the options of a toggle set of the runner that are possible here."""
        self._check_toggles(preset.title, preset.toggles)

    def apply_own(self, name: str) -> None:
        """Choose the options of one of the user's toggle sets that are possible here."""
        if self._configuration.catalogue is not None:
            self._check_toggles(name, *files.fit(self.own[name], self._configuration.catalogue))

    def dismiss(self) -> None:
        """Hide the list of omitted options."""
        self._set_outcome(None)

    def _check_toggles(
        self, title: str, toggles: Mapping[str, str], unknown: Sequence[str] = ()
    ) -> None:
        configuration = self._configuration.edited
        if configuration is None or self.why_not():
            return
        complete = config_edit.with_toggles(configuration, dict(toggles))
        self._request = _Request(title, complete, tuple(toggles), tuple(unknown))
        self._run.send(protocol.Check(configuration=complete))

    def _answered(self, message: protocol.AnyMessage) -> None:
        request = self._request
        if (
            request is None
            or not isinstance(message, protocol.Availability)
            or message.configuration != request.configuration
        ):
            return
        self._request = None
        if not message.toggles:  # the runner could not resolve the toggles
            why = message.problems[0] if message.problems else "The runner has no toggle sets."
            self._set_outcome(Outcome(f"{request.title} was not applied.", (why,)))
            return
        choices = {name: message.toggles[name] for name in request.names}
        self._configuration.choose(choices, f"Toggle set {request.title}")
        left_out = (*request.unknown, *self._sentences(message.left_out))
        outcome = Outcome(f"{request.title} is chosen, except:", left_out) if left_out else None
        self._set_outcome(outcome, self._configuration.edited)

    def _set_outcome(self, outcome: Outcome | None, chosen: Configuration | None = None) -> None:
        self.outcome, self._chosen = outcome, chosen
        self.changed.emit()

    def _dismiss_if_edited(self) -> None:
        """Hide the outcome once something else is chosen."""
        chosen, edited = self._chosen, self._configuration.edited
        if chosen is None or edited is None:
            return
        if edited.toggles != chosen.toggles or not config_edit.of_one_run(edited, chosen):
            self.dismiss()

    def _sentences(self, left_out: Sequence[protocol.LeftOut]) -> list[str]:
        """Return a sentence for each toggle whose preferred options were left out."""
        catalogue = self._configuration.catalogue
        assert catalogue is not None
        sentences = []
        for name in dict.fromkeys(item.toggle for item in left_out):
            toggle = config_edit.toggle_of(catalogue, name)
            passed = [item for item in left_out if item.toggle == name]
            options = " or ".join(config_edit.option_title(toggle, item.option) for item in passed)
            reasons = "; ".join(dict.fromkeys(item.reason for item in passed))
            taken = config_edit.option_title(toggle, passed[-1].taken)
            sentences.append(f"{toggle.title}: {taken} instead of {options}: {reasons}.")
        return sentences

    # The user's own

    def save(self, name: str) -> None:
        """Store the chosen toggles under a name; an earlier set of that name is replaced."""
        if self._configuration.edited is not None:
            toggles = dict(self._configuration.edited.toggles)
            self._change(f"Save toggle set {name}", {**self.own, name: toggles})

    def add(self, name: str, toggles: Choices) -> str:
        """Store toggles under a name, with a number after it if it is taken; return the name."""
        name = _free(name, self.own)
        self._change(f"Save toggle set {name}", {**self.own, name: dict(toggles)})
        return name

    def remove(self, name: str) -> None:
        """Delete a toggle set of the user."""
        left = {other: toggles for other, toggles in self.own.items() if other != name}
        self._change(f"Delete toggle set {name}", left)

    def rename(self, name: str, to: str) -> None:
        """Rename a toggle set, with a number after its new name if that is taken."""
        if to == name:
            return
        taken = self.own.keys() - {name}
        to = _free(to, taken)
        renamed = {to if key == name else key: toggles for key, toggles in self.own.items()}
        self._change(f"Rename toggle set {name}", renamed)

    def export_file(self, name: str, path: Path) -> None:
        """Write a toggle set to a file for other people."""
        try:
            files.write(path, {name: self.own[name]})
        except ValueError as error:
            self._refuse(error)

    def import_file(self, path: Path) -> None:
        """Add the toggle sets of a file; a number is appended to names that are taken."""
        try:
            shared = files.read(path)
        except ValueError as error:
            self._refuse(error)
            return
        toggle_sets = dict(self.own)
        for name, toggles in shared.items():
            if toggle_sets.get(name) != toggles:
                toggle_sets[_free(name, toggle_sets)] = toggles
        self._change(f"Add toggle sets of {path.name}", toggle_sets)
        names = ", ".join(shared)
        self._set_outcome(Outcome(f"{names}: added to the menu from {path.name}."))

    def _change(self, text: str, after: dict[str, Choices]) -> None:
        if after != self.own:
            self._configuration.undo.push(Change(text, self.own, after, self._keep))

    def _keep(self, presets: dict[str, Choices]) -> None:
        self.own = presets
        if self._settings is not None:
            self._settings.toggle_presets = presets
        self.changed.emit()

    def _refuse(self, error: ValueError) -> None:
        self._failures.report(protocol.Failure(kind="mistake", sentence=f"{error}."))


def _free(name: str, taken: Collection[str]) -> str:
    """Return the name, or the first of ``name 2``, ``name 3`` ... that is not taken."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name} {number}"
    return free
