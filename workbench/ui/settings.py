"""Settings that the window stores: geometry, theme, recent files, toggle sets, preferences."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec
from PySide6.QtCore import QByteArray, QSettings

from sessions.model import Configuration
from workbench import protocol
from workbench.ui.state.undo import Choices

LAYOUT_VERSION = 2  # raise it when docks are added, so that an old layout is not restored
RECENT = 10
LONGEST_BUDGET_S = 3600.0
LARGEST_REGION = 0.2
FONT_POINTS = (6.0, 24.0)  # smallest and largest
MOST_BUILDS = 1000
_NAMED_LAYOUTS = f"named_layouts{LAYOUT_VERSION}"


class Settings:
    """Typed access to the platform's settings store, or to an ini file (for tests)."""

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            self._store = QSettings("workbench", "workbench")
        else:
            self._store = QSettings(str(path), QSettings.Format.IniFormat)

    @property
    def theme(self) -> str:
        """``system``, ``dark`` or ``light``."""
        return str(self._store.value("theme", "system"))

    @theme.setter
    def theme(self, name: str) -> None:
        self._store.setValue("theme", name)

    @property
    def recent(self) -> list[Path]:
        """Session files that were opened or saved, newest first; those that are gone left out."""
        stored = str(self._store.value("recent", "") or "")
        # Not of Path, which raises where a folder may not be entered.
        return [Path(line) for line in stored.splitlines() if os.path.exists(line)]  # noqa: PTH110

    def remember(self, path: Path) -> None:
        """Put a file at the head of the recent ones."""
        path = path.absolute()
        recent = [path, *(other for other in self.recent if other != path)]
        self._store.setValue("recent", "\n".join(str(item) for item in recent[:RECENT]))

    @property
    def presets(self) -> dict[str, Configuration]:
        """Configurations that the user saved, by name; unreadable ones are left out."""
        presets = {}
        self._store.beginGroup("presets")
        for name in self._store.childKeys():
            try:
                stored = str(self._store.value(name))
                presets[unquote(name)] = msgspec.json.decode(stored, type=Configuration)
            except msgspec.MsgspecError:
                continue
        self._store.endGroup()
        return presets

    def save_preset(self, name: str, configuration: Configuration) -> None:
        """Save a configuration under a name."""
        key = quote(name, safe="")  # a slash would begin a group of the store
        self._store.setValue(f"presets/{key}", msgspec.json.encode(configuration).decode())

    @property
    def toggle_presets(self) -> dict[str, Choices]:
        """Toggles that the user saved, by name; none where they cannot be read."""
        try:
            stored = str(self._store.value("toggle_presets", "{}"))
            return msgspec.json.decode(stored, type=dict[str, Choices])
        except msgspec.MsgspecError:
            return {}

    @toggle_presets.setter
    def toggle_presets(self, presets: dict[str, Choices]) -> None:
        # One value: a name with a slash in it would be a group of the store.
        self._store.setValue("toggle_presets", msgspec.json.encode(presets).decode())

    @property
    def auto_verdict(self) -> bool:
        """True if every change of toggles is judged without a question."""
        return str(self._store.value("auto_verdict", "false")) == "true"

    @auto_verdict.setter
    def auto_verdict(self, automatic: bool) -> None:
        self._store.setValue("auto_verdict", "true" if automatic else "false")

    @property
    def tour_shown(self) -> bool:
        """True if the tour of the window was started once."""
        return str(self._store.value("tour_shown", "false")) == "true"

    @tour_shown.setter
    def tour_shown(self, shown: bool) -> None:
        self._store.setValue("tour_shown", "true" if shown else "false")

    @property
    def pairing_share(self) -> float:
        """Share of a run's time that may go to blocks of its baseline."""
        try:
            share = float(str(self._store.value("pairing_share", protocol.PAIRING_SHARE)))
        except ValueError:
            return protocol.PAIRING_SHARE
        return share if 0 <= share <= protocol.MOST_PAIRING_SHARE else protocol.PAIRING_SHARE

    @pairing_share.setter
    def pairing_share(self, share: float) -> None:
        self._store.setValue("pairing_share", share)

    @property
    def build_count(self) -> int:
        """Number of builds of both arms for a verdict; 0: several if that is cheap."""
        return int(self._number("build_count", 0, 0, MOST_BUILDS))

    @build_count.setter
    def build_count(self, count: int) -> None:
        self._store.setValue("build_count", count)

    @property
    def check_numbers(self) -> bool:
        """True if a run compares the numbers of each segment with a reference."""
        return str(self._store.value("check_numbers", "true")) == "true"

    @check_numbers.setter
    def check_numbers(self, checks: bool) -> None:
        self._store.setValue("check_numbers", "true" if checks else "false")

    @property
    def font_points(self) -> float:
        """Size of the interface's type in points; 0 is the system's."""
        return self._number("font_points", 0.0, *FONT_POINTS)

    @font_points.setter
    def font_points(self, points: float) -> None:
        self._store.setValue("font_points", points)

    @property
    def decimal_units(self) -> bool:
        """True to show memory in GB, False in GiB."""
        return str(self._store.value("decimal_units", "false")) == "true"

    @decimal_units.setter
    def decimal_units(self, decimal: bool) -> None:
        self._store.setValue("decimal_units", "true" if decimal else "false")

    @property
    def folder(self) -> Path | None:
        """The folder in which dialogs for files begin; None is the system's for documents."""
        text = str(self._store.value("folder", "") or "")
        return Path(text) if text else None

    @folder.setter
    def folder(self, folder: Path) -> None:
        self._store.setValue("folder", str(folder))

    @property
    def budget_s(self) -> float:
        """Seconds that a verdict may take."""
        return self._number("budget_s", 20.0, 1.0, LONGEST_BUDGET_S)

    @budget_s.setter
    def budget_s(self, seconds: float) -> None:
        self._store.setValue("budget_s", seconds)

    @property
    def region(self) -> float:
        """Relative difference of step time within which two arms are the same."""
        return self._number("region", 0.01, 0.0, LARGEST_REGION)

    @region.setter
    def region(self, region: float) -> None:
        self._store.setValue("region", region)

    @property
    def shortcuts(self) -> dict[str, str]:
        """Keys that the user chose, by the id of the action."""
        try:
            stored = str(self._store.value("shortcuts", "{}"))
            return msgspec.json.decode(stored, type=dict[str, str])
        except msgspec.MsgspecError:
            return {}

    @shortcuts.setter
    def shortcuts(self, shortcuts: dict[str, str]) -> None:
        self._store.setValue("shortcuts", msgspec.json.encode(shortcuts).decode())

    def _number(self, name: str, default: float, least: float, most: float) -> float:
        try:
            number = float(str(self._store.value(name, default)))
        except ValueError:
            return default
        return number if least <= number <= most else default

    @property
    def named_layouts(self) -> list[str]:
        """Names of the layouts that the user saved."""
        self._store.beginGroup(_NAMED_LAYOUTS)
        names = sorted(unquote(key) for key in self._store.childKeys())
        self._store.endGroup()
        return names

    def named_layout(self, name: str) -> QByteArray | None:
        """Return a saved dock state; None if there is none of that name."""
        value = self._store.value(f"{_NAMED_LAYOUTS}/{quote(name, safe='')}")
        return value if isinstance(value, QByteArray) else None

    def save_named_layout(self, name: str, state: QByteArray) -> None:
        """Save a dock state under a name."""
        self._store.setValue(f"{_NAMED_LAYOUTS}/{quote(name, safe='')}", state)

    def delete_named_layout(self, name: str) -> None:
        """Forget a saved layout."""
        self._store.remove(f"{_NAMED_LAYOUTS}/{quote(name, safe='')}")

    def layout(self, part: str) -> QByteArray | None:
        """Return a stored geometry or dock state; None if there is none of this version."""
        value = self._store.value(f"layout{LAYOUT_VERSION}/{part}")
        return value if isinstance(value, QByteArray) else None

    def save_layout(self, part: str, value: QByteArray) -> None:
        """Save a geometry or dock state."""
        self._store.setValue(f"layout{LAYOUT_VERSION}/{part}", value)

    def forget_layout(self) -> None:
        """Return to the layout that a fresh window has."""
        self._store.remove(f"layout{LAYOUT_VERSION}")
