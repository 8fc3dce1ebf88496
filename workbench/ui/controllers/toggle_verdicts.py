"""The newest verdict on each toggle, for its row in the panel."""

from __future__ import annotations

import dataclasses
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
    newer: ToggleVerdict | None = None  # the same two, paired by a run since; nobody requested it


def last_verdicts(
    segments: Sequence[Segment],
    comparisons: Sequence[PairedComparison],
    configuration: Configuration,
) -> dict[str, ToggleVerdict]:
    """Return the newest verdict on each toggle that was measured on this model and workload.

    A comparison counts if it is final and its two configurations differ in a single toggle. If a
    run paired the same two later and more often, as Segments shows, that is ``newer``.
    """
    verdicts: dict[str, ToggleVerdict] = {}
    for comparison in comparisons:
        indices, is_by_run = comparison.segment_indices, is_background(comparison)
        if len(indices) != 2 or not (is_by_run or comparison.facts.get("final")):
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
            newest = ToggleVerdict(base.toggles[name], other.toggles[name], comparison)
            if not is_by_run:
                verdicts[name] = newest
            elif (verdict := verdicts.get(name)) is not None:
                arms = [segments[i].configuration for i in verdict.comparison.segment_indices]
                has_more = _count_pairs(comparison) > _count_pairs(verdict.comparison)
                if has_more and arms in ([base, other], [other, base]):
                    verdicts[name] = dataclasses.replace(verdict, newer=newest)
    return verdicts


def _count_pairs(comparison: PairedComparison) -> int:
    return int(comparison.facts.get("pairs", 0))
