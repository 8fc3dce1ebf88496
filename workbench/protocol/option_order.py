"""Options of a toggle in order of preference: in a preset, and those that cannot be used."""

from __future__ import annotations

import msgspec

OR = "|"  # separates the options of a toggle, in order of preference


class TogglePreset(msgspec.Struct, frozen=True, kw_only=True):
    """A named choice of toggles; toggles that it does not name do not change.

    ``toggles`` are options by toggle, or several joined by ``OR``.
    """

    name: str
    title: str
    help: str
    toggles: dict[str, str]


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A preferred option that cannot be used, why, and the option ``taken`` instead."""

    toggle: str
    option: str
    taken: str
    reason: str
    fix: str
