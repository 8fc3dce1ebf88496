"""The newest verdict on each toggle, for its row in the panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sessions.model import Configuration, PairedComparison, Segment
from sessions.verdicts.background import is_background
from workbench.ui.state import config_edit


@dataclass(frozen=True)
class ToggleVerdict:
    """The comparison of two options of one toggle: ``other`` against ``base``."""

    base: str
    other: str
    comparison: PairedComparison


def last_verdicts(
    segments: Sequence[Segment],
    comparisons: Sequence[PairedComparison],
    configuration: Configuration,
) -> dict[str, ToggleVerdict]:
    """Return the newest verdict on each toggle that was measured on this model and workload.

    A comparison counts if it is final and its two configurations differ in a single toggle.
    """
    verdicts = {}
    for comparison in comparisons:
        indices = comparison.facts.get("segments", [])
        if is_background(comparison) or not comparison.facts.get("final") or len(indices) != 2:
            continue
        base, other = (segments[index].configuration for index in indices)
        names = [name for name, option in other.toggles.items() if base.toggles.get(name) != option]
        if len(names) != 1:
            continue
        (name,) = names
        if all(
            config_edit.ran_as(config_edit.with_toggles(configuration, side.toggles), side)
            for side in (base, other)
        ):
            verdicts[name] = ToggleVerdict(base.toggles[name], other.toggles[name], comparison)
    return verdicts
