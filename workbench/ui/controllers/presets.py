"""Presets of toggles in the window: those of the runner, and a person's own.

The runner is asked what a preset comes to under the configuration that is being edited; what it
answers is chosen as one step of undo, and what it left out is told.
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
from workbench.ui.state.run import RunModel
from workbench.ui.state.undo import Change, Choices


@dataclass(frozen=True)
class Told:
    """What came of applying a preset: a sentence, and one for each thing that was left out."""

    text: str
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Asked:
    title: str
    configuration: Configuration  # with all that the preset prefers
    names: tuple[str, ...]  # of the toggles that it settles
    unknown: tuple[str, ...]  # sentences


class Presets(QObject):
    """``own`` are the person's presets by name, ``told`` what came of the last one applied."""

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
        self.told: Told | None = None
        self._chosen: Configuration | None = None  # what is told of, where a preset was applied
        self._asked: _Asked | None = None
        self._settings: Settings | None = None
        run.received.connect(self._answered)
        configuration.editedChanged.connect(self._look)

    def keep_in(self, settings: Settings) -> None:
        """Keep the person's own presets there, and take those that are."""
        self._settings = settings
        self.own = settings.toggle_presets

    @property
    def offered(self) -> list[protocol.TogglePreset]:
        """The runner's presets."""
        catalogue = self._configuration.catalogue
        return [] if catalogue is None else catalogue.presets

    def why_not(self) -> str:
        """Why no preset can be applied or saved; empty where one can."""
        if self._run.replaying:
            return "This is a replay; open the window without --replay to change toggles."
        if self._configuration.edited is None or self._run.state in ("none", "starting", "dead"):
            return "The runner is not ready."
        return ""

    # Applying

    def apply(self, preset: protocol.TogglePreset) -> None:
        """Choose what a preset of the runner comes to here."""
        self._ask(preset.title, preset.toggles)

    def apply_own(self, name: str) -> None:
        """Choose what a preset of the person's own comes to here."""
        if self._configuration.catalogue is not None:
            self._ask(name, *files.fit(self.own[name], self._configuration.catalogue))

    def dismiss(self) -> None:
        """Tell no longer what was left out."""
        self._tell(None)

    def _ask(self, title: str, toggles: Mapping[str, str], unknown: Sequence[str] = ()) -> None:
        configuration = self._configuration.edited
        if configuration is None or self.why_not():
            return
        asked = config_edit.with_toggles(configuration, dict(toggles))
        self._asked = _Asked(title, asked, tuple(toggles), tuple(unknown))
        self._run.send(protocol.Check(configuration=asked))

    def _answered(self, message: protocol.AnyMessage) -> None:
        asked = self._asked
        if (
            asked is None
            or not isinstance(message, protocol.Availability)
            or message.configuration != asked.configuration
        ):
            return
        self._asked = None
        if not message.toggles:  # nothing could be said of the toggles
            why = message.problems[0] if message.problems else "The runner has no toggle sets."
            self._tell(Told(f"{asked.title} was not applied.", (why,)))
            return
        choices = {name: message.toggles[name] for name in asked.names}
        self._configuration.choose(choices, f"Toggle set {asked.title}")
        left_out = (*asked.unknown, *self._sentences(message.left_out))
        told = Told(f"{asked.title} is chosen, but for:", left_out) if left_out else None
        self._tell(told, self._configuration.edited)

    def _tell(self, told: Told | None, chosen: Configuration | None = None) -> None:
        self.told, self._chosen = told, chosen
        self.changed.emit()

    def _look(self) -> None:
        """What was chosen, and why not more, is told until something else is chosen."""
        chosen, now = self._chosen, self._configuration.edited
        if chosen is None or now is None:
            return
        if now.toggles != chosen.toggles or not config_edit.of_one_run(now, chosen):
            self.dismiss()

    def _sentences(self, left_out: Sequence[protocol.LeftOut]) -> list[str]:
        """One sentence for each toggle."""
        catalogue = self._configuration.catalogue
        assert catalogue is not None
        said = []
        for name in dict.fromkeys(one.toggle for one in left_out):
            toggle = config_edit.toggle_of(catalogue, name)
            passed = [one for one in left_out if one.toggle == name]
            options = " or ".join(config_edit.option_title(toggle, one.option) for one in passed)
            reasons = "; ".join(dict.fromkeys(one.reason for one in passed))
            taken = config_edit.option_title(toggle, passed[-1].taken)
            said.append(f"{toggle.title}: {taken}, and not {options}: {reasons}.")
        return said

    # A person's own

    def save(self, name: str) -> None:
        """Keep the toggles as they are under a name, in place of what it named before."""
        if self._configuration.edited is not None:
            toggles = dict(self._configuration.edited.toggles)
            self._change(f"Save toggle set {name}", {**self.own, name: toggles})

    def add(self, name: str, toggles: Choices) -> str:
        """Keep these toggles under a name, with a number after it if it is taken; return it."""
        name = _free(name, self.own)
        self._change(f"Save toggle set {name}", {**self.own, name: dict(toggles)})
        return name

    def remove(self, name: str) -> None:
        """Forget one."""
        left = {other: toggles for other, toggles in self.own.items() if other != name}
        self._change(f"Delete toggle set {name}", left)

    def rename(self, name: str, to: str) -> None:
        """Give one another name, with a number after it where that is taken."""
        if to == name:
            return
        taken = self.own.keys() - {name}
        to = _free(to, taken)
        renamed = {to if one == name else one: toggles for one, toggles in self.own.items()}
        self._change(f"Rename toggle set {name}", renamed)

    def share(self, name: str, path: Path) -> None:
        """Write one to a file that others can read."""
        try:
            files.write(path, {name: self.own[name]})
        except ValueError as error:
            self._refuse(error)

    def take(self, path: Path) -> None:
        """Add the presets of a file; one whose name is taken gets a number after it."""
        try:
            shared = files.read(path)
        except ValueError as error:
            self._refuse(error)
            return
        own = dict(self.own)
        for name, toggles in shared.items():
            if own.get(name) != toggles:
                own[_free(name, own)] = toggles
        self._change(f"Add toggle sets of {path.name}", own)
        names = ", ".join(shared)
        self._tell(Told(f"{names}: now in the menu, from {path.name}."))

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
    """The name, or the first of ``name 2``, ``name 3`` ... that is not taken."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name} {number}"
    return free
