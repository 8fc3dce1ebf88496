"""What identical arms differ by on this machine, stored; nothing smaller is claimed by a verdict.

One file in the state folder holds a floor for each device.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from sessions.model import PairedComparison
from sessions.verdict import MIN_PAIRS
from workbench import journal, kept


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """One device's floor, and the comparison of identical arms that it comes from."""

    device: str
    floor: float  # a share: 0.004 is 0.4 %
    created: float  # Unix time
    pairs: int
    seconds: float
    measured_with: str  # family, preset and workload


def path() -> Path:
    """Where the floors are kept."""
    return journal.folder() / "calibration.json"


def load(device: str) -> Calibration | None:
    """The device's calibration, or None where there is none that can be read."""
    return _load_all().get(device)


def floor_of(device: str) -> float:
    """The device's floor; 0 where it was never calibrated."""
    found = load(device)
    return 0.0 if found is None else found.floor


def floor(comparison: PairedComparison) -> float:
    """The largest difference that identical arms may have: the interval's end farther from 1.

    Raises ``ValueError`` with one sentence where too few pairs were measured to say.
    """
    pairs = comparison.facts.get("pairs", 0)
    if pairs < MIN_PAIRS or not comparison.low > 0:
        raise ValueError(
            f"{pairs} pairs were measured, at least {MIN_PAIRS} are needed; allow more time"
        )
    return max(comparison.high, 1 / comparison.low) - 1


def store(calibration: Calibration) -> None:
    """Keep a calibration, in place of an earlier one of the device; raises ``OSError``."""
    kept.write(path(), calibration.device, calibration, _load_all())


def describe(calibration: Calibration) -> str:
    """The calibration in one line."""
    day = time.strftime("%Y-%m-%d", time.localtime(calibration.created))
    return (
        f"identical arms differ by up to {100 * calibration.floor:.2g} % on {calibration.device} "
        f"({calibration.measured_with}, {calibration.pairs} pairs, {day}); "
        "nothing smaller is claimed"
    )


def _load_all() -> dict[str, Calibration]:
    return kept.read(path(), Calibration)[0]
