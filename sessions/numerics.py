"""What a segment's ledger says of its numbers: whether they were right, beside a reference.

The ledger keeps ``numbers``, in words, and ``numbers_right``, which is missing where nobody knows;
with it ``numbers_tolerance``, the relative error that was allowed. A segment that nobody looked at
has none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sessions.model import Numerics, Scalar

TEXT, RIGHT, TOLERANCE = "numbers", "numbers_right", "numbers_tolerance"
WRONG = "WRONG"
MARKS = {True: "right", False: WRONG, None: "unknown"}


def facts(found: Numerics) -> dict[str, Scalar]:
    """The facts that tell of a check."""
    against = f"against {found.reference}: " if found.reference and found.ok is not None else ""
    ledger: dict[str, Scalar] = {TEXT: f"{against}{found.text}"}
    if found.ok is not None:
        ledger[RIGHT] = found.ok
        if found.tolerance is not None:
            ledger[TOLERANCE] = found.tolerance
    return ledger


def was_checked(ledger: Mapping[str, Any]) -> bool:
    """Whether anything is known of the numbers, if only why they were not checked."""
    return TEXT in ledger


def are_wrong(ledger: Mapping[str, Any]) -> bool:
    """Whether they are known to be wrong: red, however fast."""
    return ledger.get(RIGHT) is False


def mark(ledger: Mapping[str, Any]) -> str:
    """One word: right, WRONG or unknown; empty where nothing is known of them."""
    return MARKS[ledger.get(RIGHT)] if was_checked(ledger) else ""


def text(ledger: Mapping[str, Any]) -> str:
    """What was found, or why nothing was; empty where nothing is known of them."""
    return str(ledger.get(TEXT, ""))
