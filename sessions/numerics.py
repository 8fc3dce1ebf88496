"""The facts in a segment's ledger about its results: right or not, beside a reference.

The ledger has ``numbers``, in words, ``numbers_right``, which is missing if unknown, and
``numbers_tolerance``, the relative error that was allowed. In training, ``losses_tolerance`` is the
absolute difference of losses that was allowed. A segment without a check has none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sessions.model import Numerics, Scalar

TEXT, RIGHT, TOLERANCE = "numbers", "numbers_right", "numbers_tolerance"
LOSSES_TOLERANCE = "losses_tolerance"
WRONG = "WRONG"
MARKS = {True: "right", False: WRONG, None: "unknown"}


def facts(numerics: Numerics) -> dict[str, Scalar]:
    """Return the facts that describe a check."""
    against = (
        f"against {numerics.reference}: " if numerics.reference and numerics.ok is not None else ""
    )
    ledger: dict[str, Scalar] = {TEXT: f"{against}{numerics.text}"}
    if numerics.ok is not None:
        ledger[RIGHT] = numerics.ok
        if numerics.tolerance is not None:
            ledger[TOLERANCE] = numerics.tolerance
        if numerics.curve_allowed is not None:
            ledger[LOSSES_TOLERANCE] = numerics.curve_allowed
    return ledger


def was_checked(ledger: Mapping[str, Any]) -> bool:
    """Return True if anything is known of the results, if only why they were not checked."""
    return TEXT in ledger


def are_wrong(ledger: Mapping[str, Any]) -> bool:
    """Return True if the results are known to be wrong, however fast."""
    return ledger.get(RIGHT) is False


def mark(ledger: Mapping[str, Any]) -> str:
    """Return one word: right, WRONG or unknown; empty where nothing is known of them."""
    return MARKS[ledger.get(RIGHT)] if was_checked(ledger) else ""


def text(ledger: Mapping[str, Any]) -> str:
    """Return the result of the check, or why there was none; empty if nothing is known."""
    return str(ledger.get(TEXT, ""))
