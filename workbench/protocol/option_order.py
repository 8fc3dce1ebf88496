"""Options of a toggle in order of preference: in a preset, and what had to be left out of it."""

from __future__ import annotations

import msgspec

OR = "|"  # between the options of a toggle, the preferred first: the first that can be used


class TogglePreset(msgspec.Struct, frozen=True, kw_only=True):
    """A named choice of toggles; toggles that it does not name do not change.

    ``toggles`` are options by toggle, or several joined by ``OR``.
    """

    name: str
    title: str
    help: str
    toggles: dict[str, str]


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """An option that was preferred and cannot be used, why, and what took its place."""

    toggle: str
    option: str
    taken: str
    reason: str
    fix: str
