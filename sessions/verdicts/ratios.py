"""Ratios of step time between segments, and the basis of each ratio.

Between segments that ran one after the other, anything may have changed: clocks, temperature, other
programs. Statistics of their steps cannot distinguish such a change from an effect of the
configuration, so their ratio is *unpaired*: without interval or proof. An interval has two sources:

* **paired**: a paired comparison of the two configurations, whose blocks alternated;
* **repeats**: both configurations ran several times *in turn*. The unit is the *visit*: the mean
  log median of the segments (or sessions) of one configuration that follow one another, so that the
  visits of the two alternate. A drift that is slower than this alternation increases the scatter of
  the visits more than the difference of their means. The interval is that of Welch's t with the
  critical value of ``sessions.verdicts.verdict``, because a person watches while visits are added.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sessions.model import KERNELS, Configuration, PairedComparison, Session
from sessions.numbers import counted
from sessions.verdicts import work
from sessions.verdicts.measurements import PAIRED as PAIRED
from sessions.verdicts.measurements import UNPAIRED as UNPAIRED
from sessions.verdicts.measurements import Measurement as Measurement
from sessions.verdicts.measurements import SegmentRatio as SegmentRatio
from sessions.verdicts.multiple_comparisons import side_by_side
from sessions.verdicts.repeats import of_repeats, visits_in_turn
from sessions.verdicts.rounds import calls, paired_logs
from sessions.verdicts.verdict import (
    ALPHA,
    REGION,
    decide,
    interval,
    region_of,
)

_SWAPPED = {"FASTER": "SLOWER", "SLOWER": "FASTER"}


def segment_ratios(measurements: Sequence[Measurement], baseline: int) -> list[SegmentRatio | None]:
    """Return the ratio of each measurement to the baseline's; None for the baseline itself.

    A ratio that rests on pairs or repeats is that of the two configurations: it is the same for
    every segment of the one that is not the baseline's.
    """
    base = measurements[baseline]
    groups = _groups(measurements)
    base_group = groups.get(_group_key(base), [])
    rounds = {
        index: logs
        for index, other in enumerate(measurements)
        if index != baseline and len(logs := _rounds(base, other))
    }
    repeated = {
        key: group
        for key, group in groups.items()
        if key != _group_key(base)
        and key[1:] == _group_key(base)[1:]
        and _is_comparable(base, group[0])
        and visits_in_turn(base_group, group) is not None
    }
    paired = _paired(measurements)
    ratios: list[SegmentRatio | None] = []
    for index, other in enumerate(measurements):
        if index == baseline:
            ratios.append(None)
            continue
        ratio = None
        if _is_comparable(base, other):
            ratio = _of_pairs(base, other, paired)
            if index in rounds:
                ratio = _of_rounds(rounds[index], len(rounds))
            elif ratio is None and _group_key(other) in repeated:
                ratio = of_repeats(base_group, repeated[_group_key(other)], len(repeated))
        ratios.append(_with_work(ratio or _unpaired(base, other), base, other))
    return ratios


def drift_sentence(measurements: Sequence[Measurement], between: str) -> str:
    """Say that one configuration's repeats differ by more than their intervals; empty if none do.

    ``between``: "segments" or "sessions", for the sentence.
    """
    widest = max((_spread(group) for group in _groups(measurements).values()), default=1.0)
    if widest <= 1 + REGION:
        return ""
    return (
        f"The same configuration measured 1.00 to {widest:.2f} x its shortest step time: "
        f"the machine drifted between {between}."
    )


def _spread(group: Sequence[Measurement]) -> float:
    """Return longest over shortest median if their intervals exclude each other, else 1."""
    known = [summary.summary for summary in group if math.isfinite(summary.summary.error)]
    if len(known) < 2:
        return 1.0
    # Bonferroni's: of many intervals of 95 % some two exclude each other by chance.
    normal = statistics.NormalDist()
    stretch = normal.inv_cdf(1 - ALPHA / 2 / len(known)) / normal.inv_cdf(1 - ALPHA / 2)
    low = max(summary.median - stretch * summary.error for summary in known)
    high = min(summary.median + stretch * summary.error for summary in known)
    medians = [summary.median for summary in known]
    return max(medians) / min(medians) if low > high else 1.0


def _key(measurement: Measurement) -> tuple[str, str, str]:
    """Return a key that is equal for measurements of one configuration on one machine."""
    return (
        repr(measurement.configuration.flat()),
        measurement.clock,
        repr(machine(measurement.session.environment)),
    )


def _groups(measurements: Sequence[Measurement]) -> dict[Any, list[Measurement]]:
    """Return the measurements by ``_group_key``, without those that have no time."""
    groups: dict[Any, list[Measurement]] = {}
    for measurement in measurements:
        if measurement.summary.median > 0:
            groups.setdefault(_group_key(measurement), []).append(measurement)
    return groups


def _group_key(measurement: Measurement) -> tuple[str, str, str, str]:
    """Return a key that is equal for repeats: ``_key``, and the code that ran.

    The arms of a comparison of one configuration with itself are two commits or two builds.
    """
    session, index = measurement.session, measurement.segment.index
    code = session.environment.get(work.COMMIT, "")
    for comparison in session.comparisons:
        arms = work.arms_of(session, comparison)
        if len(arms) == 2 and arms[0] == arms[1] and index in comparison.segment_indices:
            code = f"{code} segment {index} of {id(session)}"
            break
    return *_key(measurement), code


def machine(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the facts of an environment that decide how fast a step is."""
    decisive = {"device", "gpu", "driver", "torch", "cpu"}
    return {
        name: value
        for name, value in sorted(environment.items())
        if decisive.intersection(name.lower().replace("_", " ").split())
    }


def _is_comparable(base: Measurement, other: Measurement) -> bool:
    """Return True if nothing but configuration and time lies between two measurements."""
    if base.session is other.session:
        return base.clock == other.clock
    return _key(base)[1:] == _key(other)[1:]


def _unpaired(base: Measurement, other: Measurement) -> SegmentRatio:
    for whose, measurement in (("the baseline has", base), ("it has", other)):
        if not measurement.summary.n:
            return SegmentRatio(math.nan, verdict="", note=f"{whose} no steady steps")
        if not measurement.summary.median > 0:
            median = f"{measurement.summary.median:g} ms, expected above 0"
            return SegmentRatio(math.nan, verdict="", note=f"{whose} a median of {median}")
    if base.clock != other.clock:
        clocks = f"{other.clock} times cannot be compared with {base.clock} times"
        return SegmentRatio(math.nan, verdict="", note=clocks)
    return SegmentRatio(other.summary.median / base.summary.median)


def _with_work(ratio: SegmentRatio, base: Measurement, other: Measurement) -> SegmentRatio:
    """Return the ratio without a verdict where the two do different work."""
    for whose, measurement in (("", other), ("the baseline is ", base)):
        if why := measurement.segment.ledger.get(work.INVALID):
            note = f"{whose}{work.INVALID}: {why}"
            return SegmentRatio(ratio.ratio, verdict=work.INVALID, note=note)
    difference, _ = work.difference_of_segments(base.segment, other.segment)
    if not difference or not math.isfinite(ratio.ratio):
        return ratio
    if KERNELS in (base.configuration.family, other.configuration.family):
        return SegmentRatio(math.nan, verdict=difference)  # a ratio does not show how time grows
    return dataclasses.replace(ratio, verdict=difference)


# Pairs


def _paired(
    measurements: Sequence[Measurement],
) -> list[tuple[Session, list[Configuration], PairedComparison]]:
    """Return the comparisons of all sessions with their arms, verdicts corrected (Holm)."""
    sessions = {
        id(measurement.session): measurement.session for measurement in measurements
    }.values()
    paired = []
    for session in sessions:
        for comparison in side_by_side(session.comparisons):
            arms = work.arms_of(session, comparison)
            ends = (comparison.ratio, comparison.low, comparison.high)
            known = all(map(math.isfinite, ends)) and not comparison.facts.get(work.INVALID)
            if len(arms) == 2 and known:
                paired.append((session, arms, comparison))
    return paired


def _of_pairs(
    base: Measurement,
    other: Measurement,
    paired: Sequence[tuple[Session, list[Configuration], PairedComparison]],
) -> SegmentRatio | None:
    """Return the ratio of the comparison of most pairs; of as many, that of these very segments."""
    configurations = [base.configuration, other.configuration]
    places = [base.segment.index, other.segment.index]
    best: tuple[tuple[int, bool], bool, PairedComparison] | None = None
    for session, arms, comparison in paired:
        if arms not in (configurations, configurations[::-1]):
            continue
        if machine(session.environment) != machine(base.session.environment):
            continue
        is_own_session = session is base.session is other.session
        indices = comparison.segment_indices
        exact = is_own_session and sorted(indices) == sorted(places)
        swapped = arms != configurations
        if arms[0] == arms[1]:  # two commits, or two builds: the configuration does not tell which
            if not exact:
                continue
            swapped = indices != places
        rank = (int(comparison.facts.get("pairs", 0)), exact)
        if best is None or rank > best[0]:
            best = rank, swapped, comparison
    if best is None:
        return None
    (pairs, _), swapped, comparison = best
    ratio, low, high, verdict = (
        comparison.ratio, comparison.low, comparison.high, comparison.verdict
    )  # fmt: skip
    if swapped:
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
        verdict = _SWAPPED.get(verdict, verdict)
    note = counted(pairs, "pair")
    return SegmentRatio(ratio, low, high, PAIRED, verdict, note, region_of(comparison))


# Rounds of kernels, which are pairs


def _rounds(base: Measurement, other: Measurement) -> NDArray:
    """Return the log ratios of the rounds in which two implementations of one case were timed."""
    difference, _ = work.difference_of_segments(base.segment, other.segment)
    is_kernel = base.configuration.family == other.configuration.family == KERNELS
    if difference or not is_kernel or base.session is not other.session:
        return np.empty(0)
    return -paired_logs(calls(base.segment), calls(other.segment))


def _of_rounds(logs: NDArray, of: int) -> SegmentRatio:
    """Return the ratio of interleaved rounds; ``of`` verdicts share the error rate (Bonferroni)."""
    time, (verdict, _) = interval(logs), decide(interval(logs, ALPHA / of), math.log1p(REGION))
    if not math.isfinite(time.low):
        return SegmentRatio(time.ratios[0], note=counted(time.n, "round"))
    return SegmentRatio(*time.ratios, PAIRED, verdict, counted(time.n, "round"))


# Repeats
