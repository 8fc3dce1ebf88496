"""The numerics checks of a comparison's arms: whose results are wrong, and whose are unchecked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sessions.model import PairedComparison


def wrong_arms(comparison: PairedComparison) -> list[tuple[str, str]]:
    """Return the arms whose results are out of tolerance, and how far: red, however fast."""
    return _arms_with(comparison, False)


def unchecked_arms(comparison: PairedComparison) -> list[tuple[str, str]]:
    """Return the arms whose results could not be checked, and why."""
    return _arms_with(comparison, None)


def are_right(check: Mapping[str, Any]) -> bool | None:
    """Return True if an arm's results, as facts keep them, are right; None if unknown."""
    # Older files mark an unchecked arm only by the lack of a reference.
    return None if check["ok"] and not check["reference"] else check["ok"]


def _arms_with(comparison: PairedComparison, right: bool | None) -> list[tuple[str, str]]:
    return [
        ("AB"[int(arm)], check["text"])
        for arm, check in sorted(comparison.facts.get("numerics", {}).items())
        if are_right(check) is right
    ]
