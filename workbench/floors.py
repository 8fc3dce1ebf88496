"""What identical arms differ by on this machine, stored; nothing smaller is claimed by a verdict.

One file in the state folder holds a floor for each device under each driver and torch: with another
of these it is another machine, and has to be calibrated again.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from sessions.model import Configuration, PairedComparison
from sessions.verdict import MIN_PAIRS
from workbench import journal, kept
from workbench.protocol import Catalogue


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """One machine's floor, and the comparison of identical arms that it comes from."""

    device: str
    software: str = ""  # driver and torch
    floor: float  # a share: 0.004 is 0.4 %
    created: float  # Unix time
    pairs: int
    seconds: float
    measured_with: str  # family, preset and workload


def path() -> Path:
    """Where the floors are kept."""
    return journal.folder() / "calibration.json"


def load(catalogue: Catalogue) -> Calibration | None:
    """The calibration of a runner's machine, or None where there is none that can be read."""
    return _load_all().get(_key(catalogue.device_title, _software(catalogue)))


def floor_of(catalogue: Catalogue) -> float:
    """The floor of a runner's machine; 0 where it was never calibrated."""
    found = load(catalogue)
    return 0.0 if found is None else found.floor


def calibrated(
    catalogue: Catalogue, comparison: PairedComparison, configuration: Configuration
) -> Calibration:
    """What a comparison of identical arms says of the machine; raises as ``floor``."""
    return Calibration(
        device=catalogue.device_title,
        software=_software(catalogue),
        floor=floor(comparison),
        created=time.time(),
        pairs=comparison.facts["pairs"],
        seconds=comparison.facts["seconds"],
        measured_with=" ".join(
            (configuration.family, configuration.preset, configuration.workload)
        ),
    )


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
    """Keep a calibration, in place of an earlier one of the machine; raises ``OSError``."""
    name = _key(calibration.device, calibration.software)
    kept.write(path(), name, calibration, _load_all())


def describe(calibration: Calibration) -> str:
    """The calibration in one line."""
    day = time.strftime("%Y-%m-%d", time.localtime(calibration.created))
    return (
        f"identical arms differ by up to {100 * calibration.floor:.2g} % on {calibration.device} "
        f"({calibration.measured_with}, {calibration.pairs} pairs, {day}); "
        "nothing smaller is claimed"
    )


def age(calibration: Calibration) -> str:
    """How long ago it was measured, as a person says it."""
    days = int((time.time() - calibration.created) // 86400)
    return "today" if days < 1 else f"{days} day{'s' * (days > 1)} ago"


def _software(catalogue: Catalogue) -> str:
    found = catalogue.environment
    return ", ".join(f"{name} {found[name]}" for name in ("driver", "torch") if found.get(name))


def _key(device: str, software: str) -> str:
    return f"{device}, {software}" if software else device


def _load_all() -> dict[str, Calibration]:
    return kept.read(path(), Calibration)[0]
