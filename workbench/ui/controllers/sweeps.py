"""Sweeps as the window asks for them: what varies, over which values, under which arms."""

from __future__ import annotations

import math

from PySide6.QtCore import QObject, Signal

from sessions.model import Configuration, Scalar, Study
from sessions.studies import sweep
from workbench import presets as files
from workbench import protocol
from workbench.ui.controllers.presets import Presets
from workbench.ui.controllers.verdicts import Verdicts
from workbench.ui.state import config_edit
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel

SECONDS = 3.0  # at each point
FIRST = "settings.sequence"
ARMS = {
    "now": "Configuration as it is",
    "plain": "Every toggle off",
    "before": "Toggles of the configuration before",
}
_PRESET, _OWN = "preset ", "own "  # before the names of presets
_FACTORS = (0.25, 0.5, 1, 2, 4)  # of the present value: what a field's values are at first


class Sweeps(QObject):
    """Holds what a person asks for; what comes back is in the session's ``studies``."""

    changed = Signal()  # what is asked for

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        verdicts: Verdicts,
        presets: Presets,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._run = session, run
        self._configuration, self._verdicts = configuration, verdicts
        self._presets = presets
        self.fields: list[str] = [FIRST, ""]  # the second may be none
        self.values: list[str] = ["", ""]  # as typed
        self.arms: set[str] = {"now"}
        self.seconds = SECONDS
        self._suggested = ["", ""]  # values that nobody typed follow the configuration
        self._lost: Study | None = None  # its runner ended before it did
        configuration.editedChanged.connect(self._follow)
        run.stateChanged.connect(self._heed)

    # What is asked for

    def offered(self) -> dict[str, str]:
        """Titles of the fields that can vary, by dotted name."""
        catalogue, now = self._configuration.catalogue, self._configuration.edited
        if catalogue is None or now is None:
            return {}
        family = config_edit.family_of(catalogue, now.family)
        workload = config_edit.workload_of(catalogue, now.workload)
        found = {f"settings.{field.name}": field.title for field in workload.fields}
        for field in family.fields:
            found[f"model.{field.name}"] = f"Model: {field.title}"
        if len(family.presets) > 1:
            found["preset"] = "Preset"
        return found

    def set_field(self, place: int, name: str) -> None:
        """Choose what varies along the first axis (0) or the second (1; may be empty)."""
        if name != self.fields[place]:
            self.fields[place] = name
            self._suggest(place)
            self.changed.emit()

    def set_values(self, place: int, text: str) -> None:
        """Take values as typed."""
        if text != self.values[place]:
            self.values[place] = text
            self.changed.emit()

    def set_arm(self, name: str, wanted: bool) -> None:
        """Measure one of ``offered_arms`` too, or no longer."""
        (self.arms.add if wanted else self.arms.discard)(name)
        self.changed.emit()

    def set_seconds(self, seconds: float) -> None:
        """How long each point is measured."""
        self.seconds = seconds
        self.changed.emit()

    def offered_arms(self) -> dict[str, str]:
        """Titles of what can be an arm, by name: ``ARMS``, the runner's presets, a person's own."""
        presets = self._presets
        offered = {f"{_PRESET}{one.name}": one.title for one in presets.offered}
        return ARMS | offered | {f"{_OWN}{name}": name for name in presets.own}

    def wanted_arms(self) -> list[str]:
        """Names of the arms that were chosen and still are there, in order."""
        return [name for name in self.offered_arms() if name in self.arms]

    def points(self) -> int:
        """How many points would be measured; 0 while something is wrong."""
        try:
            return math.prod(map(len, self._axes().values())) * len(self.wanted_arms())
        except ValueError:
            return 0

    def why_not_arm(self, name: str) -> str:
        """Why an arm cannot be measured; empty where it can."""
        if name == "before" and self._verdicts.before() is None:
            return "No other configuration has run yet."
        return ""

    def why_not(self) -> str:
        """Why no sweep can be run; empty where one can."""
        if self._run.replaying:
            return "This is a replay; open the window without --replay to measure."
        if self.measuring:
            return "A sweep is being measured."
        if self._configuration.edited is None or not self._run.ready:
            return "The runner is not ready."
        try:
            self._axes()
        except ValueError as error:
            return str(error)
        wanted = self.wanted_arms()
        if not wanted:
            return "Choose at least one arm."
        return next(filter(None, map(self.why_not_arm, wanted)), "")

    def run(self) -> None:
        """Ask for the sweep."""
        base = self._configuration.edited
        if base is None or self.why_not():
            return
        arms = [self._toggles(name, base) for name in self.wanted_arms()]
        self._run.perform(
            protocol.Sweep(
                base=base, axes=self._axes(), arms=arms, seconds=self.seconds, seed=base.seed
            )
        )

    # What was measured

    @property
    def newest(self) -> Study | None:
        """The last sweep of the session that is shown."""
        found = [study for study in self._session.shown.studies if study.kind == sweep.KIND]
        return found[-1] if found else None

    @property
    def measuring(self) -> bool:
        """Whether the newest sweep is being measured now, and not a run after it."""
        newest = self.newest
        if newest is None or newest is self._lost or newest.facts.get("final", False):
            return False
        return self._session.live and self._run.active

    def _heed(self) -> None:
        """A sweep whose runner is gone does not go on."""
        if self._run.state in ("dead", "starting"):
            self._lost = self.newest

    def _toggles(self, arm: str, base: Configuration) -> dict[str, str]:
        catalogue = self._configuration.catalogue
        if arm == "plain" and catalogue is not None:
            return {toggle.name: toggle.options[0].name for toggle in catalogue.toggles}
        presets = self._presets
        if arm.startswith(_PRESET):
            named = {one.name: one.toggles for one in presets.offered}
            return dict(named[arm.removeprefix(_PRESET)])
        if arm.startswith(_OWN) and catalogue is not None:
            return dict(files.fit(presets.own[arm.removeprefix(_OWN)], catalogue)[0])
        before = self._verdicts.before()
        if arm == "before" and before is not None:
            return dict(before.toggles)
        return {}

    def _axes(self) -> dict[str, list[Scalar]]:
        """Fields and their values; raises ``ValueError`` with a sentence for a person."""
        axes: dict[str, list[Scalar]] = {}
        for place, name in enumerate(self.fields):
            if not name:
                continue
            if name in axes:
                raise ValueError("Both fields are the same; choose another one, or none.")
            try:
                axes[name] = sweep.read_values(self.values[place], name)
            except ValueError:
                title = self.offered().get(name, name)
                raise ValueError(f"{title}: write values between commas, 128, 256.") from None
        return axes

    def _follow(self) -> None:
        """Other families have other fields; values that were only suggested follow the form."""
        offered = self.offered()
        for place, name in enumerate(self.fields):
            if name and name not in offered and offered:
                self.fields[place] = FIRST if place == 0 else ""
            if self.values[place] == self._suggested[place]:
                self._suggest(place)
        self.changed.emit()

    def _suggest(self, place: int) -> None:
        catalogue, now, name = (
            self._configuration.catalogue,
            self._configuration.edited,
            self.fields[place],
        )
        text = ""
        if catalogue is not None and now is not None and name:
            text = ", ".join(map(sweep.shown, _around(catalogue, now, name)))
        self.values[place] = self._suggested[place] = text


def _around(
    catalogue: protocol.Catalogue, configuration: Configuration, name: str
) -> list[sweep.Value]:
    """Values of a field around its present one: halves and doubles, all choices, or both ways."""
    family = config_edit.family_of(catalogue, configuration.family)
    if name == "preset":
        return list(family.presets)
    group, _, own = name.partition(".")
    if group == "settings":
        fields = config_edit.workload_of(catalogue, configuration.workload).fields
        value = configuration.settings.get(own, 1)
    else:
        fields = family.fields
        preset = config_edit.preset_value(family, configuration.preset, own)
        value = configuration.model.get(own, preset)
    field = next(field for field in fields if field.name == own)
    if isinstance(value, bool):
        return ["false", "true"]
    if field.choices or isinstance(value, str):
        return [str(choice) for choice in field.choices or [value]]
    low, high = field.minimum or 0, field.maximum or math.inf
    around = [value * factor for factor in _FACTORS]
    if isinstance(value, int):
        around = [round(one) for one in around]
    return sorted({float(one) for one in around if max(low, 1e-12) <= one <= high})
