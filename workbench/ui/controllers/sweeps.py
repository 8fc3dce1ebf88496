"""Sweeps that the window requests: the varied fields, their values, the arms."""

from __future__ import annotations

import math

from PySide6.QtCore import QObject, Signal

from sessions.model import Configuration, Scalar, Study
from sessions.studies import sweep
from workbench import presets as files
from workbench import protocol
from workbench.ui.controllers.measurements import Measurements
from workbench.ui.controllers.presets import Presets
from workbench.ui.controllers.verdicts import Verdicts
from workbench.ui.state import config_edit
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import NOT_READY, RunModel
from workbench.ui.state.session import SessionModel

SECONDS = 3.0  # duration of a point
FIRST = "settings.sequence"
ARMS = {
    "now": "Current configuration",
    "plain": "Every toggle off",
    "before": "Toggles of the configuration before",
}
_PRESET, _OWN = "preset ", "own "  # prefixes of preset names
_FACTORS = (0.25, 0.5, 1, 2, 4)  # times the current value: suggested values of a field


class Sweeps(QObject):
    """Form and requests of sweeps; their results are in the session's ``studies``."""

    changed = Signal()  # the form changed

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        measurements: Measurements,
        verdicts: Verdicts,
        presets: Presets,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._run = session, run
        self._configuration, self._verdicts = configuration, verdicts
        self._measurements, self._presets = measurements, presets
        self.fields: list[str] = [FIRST, ""]  # the second may be none
        self.values: list[str] = ["", ""]  # as typed
        self.arms: set[str] = {"now"}
        self.seconds = SECONDS
        self._suggested = ["", ""]  # values that were not typed follow the configuration
        configuration.editedChanged.connect(self._update_axes)

    # The form

    def offered(self) -> dict[str, str]:
        """Return the titles of the fields that can vary, by dotted name."""
        catalogue, edited = self._configuration.catalogue, self._configuration.edited
        if catalogue is None or edited is None:
            return {}
        family = config_edit.family_of(catalogue, edited.family)
        workload = config_edit.workload_of(catalogue, edited.workload)
        titles = {
            f"{group}.{field.name}": f"{prefix}{field.title}"
            for group, prefix, fields in (
                ("settings", "", workload.fields),
                ("model", "Model: ", family.fields),
            )
            for field in fields
            if config_edit.applies(family.name, group, field.name)
        }
        if len(family.presets) > 1:
            titles["preset"] = "Preset"
        return titles

    def set_field(self, axis: int, name: str) -> None:
        """Choose what varies along the first axis (0) or the second (1; may be empty)."""
        if name != self.fields[axis]:
            self.fields[axis] = name
            self._suggest(axis)
            self.changed.emit()

    def set_values(self, axis: int, text: str) -> None:
        """Set the values of an axis, as typed."""
        if text != self.values[axis]:
            self.values[axis] = text
            self.changed.emit()

    def set_arm(self, name: str, included: bool) -> None:
        """Add an arm of ``offered_arms``, or remove it."""
        (self.arms.add if included else self.arms.discard)(name)
        self.changed.emit()

    def set_seconds(self, seconds: float) -> None:
        """Set how long each point is measured."""
        self.seconds = seconds
        self.changed.emit()

    def offered_arms(self) -> dict[str, str]:
        """Return titles of arms by name: ``ARMS``, the runner's toggle sets, the user's own."""
        presets = self._presets
        offered = {f"{_PRESET}{preset.name}": preset.title for preset in presets.offered}
        return ARMS | offered | {f"{_OWN}{name}": name for name in presets.own}

    def wanted_arms(self) -> list[str]:
        """Return the names of the chosen arms that are still offered, in order."""
        return [name for name in self.offered_arms() if name in self.arms]

    def points(self) -> int:
        """Return the number of points to measure; 0 if something is wrong."""
        try:
            return math.prod(map(len, self._axes().values())) * len(self.wanted_arms())
        except ValueError:
            return 0

    def why_not_arm(self, name: str) -> str:
        """Return why an arm cannot be measured; empty if it can."""
        if name == "before" and self._verdicts.before() is None:
            return "No other configuration has run yet."
        return ""

    def why_not(self) -> str:
        """Return why no sweep can be run; empty if it is possible."""
        is_pending = self._measurements.is_pending(protocol.Sweep)
        pending = "A sweep is being measured." if is_pending else ""
        if why := self._run.why_not("measure", pending):
            return why
        if self._configuration.edited is None:
            return NOT_READY
        try:
            self._axes()
        except ValueError as error:
            return str(error)
        arms = self.wanted_arms()
        if not arms:
            return "Choose at least one arm."
        return next(filter(None, map(self.why_not_arm, arms)), "")

    def run(self) -> None:
        """Request the sweep."""
        base = self._configuration.edited
        if base is None or self.why_not():
            return
        arms = [self._toggles(name) for name in self.wanted_arms()]
        self._measurements.perform(
            protocol.Sweep(
                base=base, axes=self._axes(), arms=arms, seconds=self.seconds, seed=base.seed
            )
        )

    # Results

    @property
    def newest(self) -> Study | None:
        """The last sweep of the shown session."""
        sweeps = [study for study in self._session.shown.studies if study.kind == sweep.KIND]
        return sweeps[-1] if sweeps else None

    @property
    def measuring(self) -> bool:
        """True while the newest sweep is being measured."""
        newest = self.newest
        if newest is None or newest.facts.get("final", False):
            return False
        return self._session.live and self._measurements.is_pending(protocol.Sweep)

    def _toggles(self, arm: str) -> dict[str, str]:
        catalogue = self._configuration.catalogue
        if arm == "plain" and catalogue is not None:
            return {toggle.name: toggle.options[0].name for toggle in catalogue.toggles}
        presets = self._presets
        if arm.startswith(_PRESET):
            named = {preset.name: preset.toggles for preset in presets.offered}
            return dict(named[arm.removeprefix(_PRESET)])
        if arm.startswith(_OWN) and catalogue is not None:
            return dict(files.fit(presets.own[arm.removeprefix(_OWN)], catalogue)[0])
        before = self._verdicts.before()
        if arm == "before" and before is not None:
            return dict(before.toggles)
        return {}

    def _axes(self) -> dict[str, list[Scalar]]:
        """Return the fields and their values; raise ``ValueError`` with a sentence for the user."""
        axes: dict[str, list[Scalar]] = {}
        for axis, name in enumerate(self.fields):
            if not name:
                continue
            if name in axes:
                raise ValueError("Both fields are the same; choose another field, or none.")
            try:
                axes[name] = sweep.read_values(self.values[axis], name)
            except ValueError:
                title = self.offered().get(name, name)
                raise ValueError(f"{title}: write values with commas, such as 128, 256.") from None
        return axes

    def _update_axes(self) -> None:
        """Replace fields that the family lacks; update values that were only suggested."""
        offered = self.offered()
        for axis, name in enumerate(self.fields):
            if name and name not in offered and offered:
                first = FIRST if FIRST in offered else next(iter(offered))
                self.fields[axis] = first if axis == 0 else ""
            if self.values[axis] == self._suggested[axis]:
                self._suggest(axis)
        self.changed.emit()

    def _suggest(self, axis: int) -> None:
        catalogue, edited = self._configuration.catalogue, self._configuration.edited
        name = self.fields[axis]
        text = ""
        if catalogue is not None and edited is not None and name:
            text = ", ".join(map(sweep.shown, _neighbouring_values(catalogue, edited, name)))
        self.values[axis] = self._suggested[axis] = text


def _neighbouring_values(
    catalogue: protocol.Catalogue, configuration: Configuration, name: str
) -> list[sweep.Value]:
    """Return values around the current value: halves and doubles, all choices, or on and off."""
    family = config_edit.family_of(catalogue, configuration.family)
    if name == "preset":
        return list(family.presets)
    group, _, field_name = name.partition(".")
    if group == "settings":
        fields = config_edit.workload_of(catalogue, configuration.workload).fields
        value = configuration.settings.get(field_name, 1)
    else:
        fields = family.fields
        preset = config_edit.preset_value(family, configuration.preset, field_name)
        value = configuration.model.get(field_name, preset)
    field = next(field for field in fields if field.name == field_name)
    if isinstance(value, bool):
        return ["false", "true"]
    if field.choices or isinstance(value, str):
        return [str(choice) for choice in field.choices or [value]]
    low, high = field.minimum or 0, field.maximum or math.inf
    neighbours = [value * factor for factor in _FACTORS]
    if isinstance(value, int):
        neighbours = [round(neighbour) for neighbour in neighbours]
    return sorted(
        {float(neighbour) for neighbour in neighbours if max(low, 1e-12) <= neighbour <= high}
    )
