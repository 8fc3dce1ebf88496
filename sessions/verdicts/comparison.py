"""Two to ten sessions side by side: step times, ratios, memory, and what else differs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sessions.errors import Lacking, SessionError
from sessions.model import Configuration, Scalar, Segment, Session
from sessions.numbers import counted
from sessions.verdicts.ratios import Measurement, SegmentRatio, drift_sentence, segment_ratios
from sessions.verdicts.statistics import Summary, clock, steady, steady_ms, summarize
from sessions.verdicts.work import DIFFERENT_MODELS, OTHER_WORK, is_of_model, is_of_workload

MOST = 10
_NAMED = 3  # sessions that a sentence can name each
# Facts of a segment: its highest steady peak without what was held for other configurations that
# were kept ready, and how much that was.
OWN_PEAK, OTHERS = "own_peak_bytes", "others_bytes"

# Facts that change step times of any configuration; the CPU only if the host's clock is used.
_DECISIVE = {"GPU": {"device", "gpu", "driver", "torch"}, "host": {"device", "cpu", "torch"}}


@dataclass(frozen=True)
class Arm:
    """One segment's steady steps, set against the baseline's."""

    title: str
    segment: Segment
    clock: str  # "GPU" or "host"
    summary: Summary
    ratio: SegmentRatio | None  # None for the baseline itself
    peak_bytes: float  # highest allocated in the steady phase, NaN where not measured

    @property
    def other_work(self) -> bool:
        """Return True if its steps do other work than the baseline's: the ratio is no speed-up."""
        return self.ratio is not None and self.ratio.verdict in (DIFFERENT_MODELS, OTHER_WORK)

    @property
    def own_peak_bytes(self) -> float:
        """The peak without memory of other configurations; NaN if unknown."""
        return float(self.segment.ledger.get(OWN_PEAK, math.nan))


@dataclass(frozen=True)
class Difference:
    """A setting that the sessions do not share: its value in each, None where it has none."""

    name: str
    values: list[Scalar | None]


@dataclass(frozen=True)
class Comparison:
    """The result of ``compare``; arms and the values of differences are in the sessions' order."""

    baseline: int
    arms: list[Arm]
    differences: list[Difference]
    warnings: list[str]  # sentences on why the step times may not be comparable


def compare(
    sessions: Sequence[Session], baseline: int = 0, segments: Sequence[int | None] | None = None
) -> Comparison:
    """Compare 2 to 10 sessions by one segment each with the baseline's.

    ``segments`` gives the index of each session's segment in its list; None, the default, takes the
    one with the most steady steps. Raises ``SessionError`` where there is nothing to compare.
    """
    if not 2 <= len(sessions) <= MOST:
        raise SessionError(
            f"compare 2 to {MOST} sessions at a time, not {len(sessions)}: choose as many."
        )
    indices: Sequence[int | None] = [None] * len(sessions) if segments is None else segments
    if len(indices) != len(sessions):
        raise SessionError(
            f"{counted(len(indices), 'segment')} cannot belong to "
            f"{counted(len(sessions), 'session')}: name a segment for each session."
        )
    chosen = [choose(session, index) for session, index in zip(sessions, indices, strict=True)]
    runs = list(zip(sessions, chosen, strict=True))
    arms, drifted = compare_segments(runs, [session.title for session in sessions], baseline)
    differing = _differences([_described(*run) for run in runs])
    return Comparison(baseline, arms, differing, _warnings(differing, arms) + drifted)


def compare_segments(
    runs: Sequence[tuple[Session, Segment]], titles: Sequence[str], baseline: int = 0
) -> tuple[list[Arm], list[str]]:
    """Return an arm for each segment, those without steady steps included (n = 0), and warnings.

    Models of other sizes have a ratio to the baseline, which says how time grows; of another
    operator, or the same one's other case or direction, it would say nothing, and there is none.
    """
    if not 0 <= baseline < len(runs):
        raise SessionError(
            f"there is no baseline {baseline}; the {len(runs)} sessions are counted from 0."
        )
    measured = [
        Measurement(session, segment, clock(segment), summarize(steady_ms(segment)))
        for session, segment in runs
    ]
    ratios = segment_ratios(measured, baseline)
    arms = [
        Arm(
            title,
            measurement.segment,
            measurement.clock,
            measurement.summary,
            ratio,
            steady_peak_bytes(measurement.segment),
        )
        for title, measurement, ratio in zip(titles, measured, ratios, strict=True)
    ]
    one_session = len({id(session) for session, _ in runs}) == 1
    drifted = drift_sentence(measured, "segments" if one_session else "sessions")
    return arms, [drifted] if drifted else []


def steady_peak_bytes(segment: Segment) -> float:
    """Return the highest peak of the steady steps; compiling and tuning do not count."""
    measured = segment.steps["peak"][steady(segment)]
    measured = measured[np.isfinite(measured)]
    return float(measured.max()) if len(measured) else math.nan


def choose(session: Session, index: int | None = None) -> Segment:
    """Return the session's segment at ``index``, or the one with the most steady steps.

    Raises ``Lacking`` where there is none, or none of its steps are steady.
    """
    if not session.segments:
        raise Lacking(f"{session.title!r} has no segments; choose a session in which a model ran.")
    if index is None:
        segment = max(session.segments, key=lambda candidate: np.count_nonzero(steady(candidate)))
    elif 0 <= index < len(session.segments):
        segment = session.segments[index]
    else:
        raise Lacking(
            f"{session.title!r} has no segment {index}; expected 0 to {len(session.segments) - 1}."
        )
    if not steady(segment).any():
        raise Lacking(f"{session.title!r} has no steady steps to compare; run it longer.")
    return segment


def differences(
    sessions: Sequence[Session], segments: Sequence[int | None] | None = None
) -> list[Difference]:
    """Return configuration (of the chosen segments) and environment entries that differ.

    Names are flat: ``settings.batch``, ``toggles.compile``, ``environment.GPU``.
    """
    indices: Sequence[int | None] = [None] * len(sessions) if segments is None else segments
    chosen = [choose(session, index) for session, index in zip(sessions, indices, strict=True)]
    return _differences(
        [_described(session, segment) for session, segment in zip(sessions, chosen, strict=True)]
    )


def configuration_differences(configurations: Sequence[Configuration]) -> list[Difference]:
    """Return the entries that differ, in the order of ``Configuration.flat``."""
    return _differences([configuration.flat() for configuration in configurations])


def _described(session: Session, segment: Segment) -> dict[str, Scalar]:
    flat = segment.configuration.flat()
    for name, value in sorted(session.environment.items()):
        flat[f"environment.{name}"] = value
    return flat


def _differences(described: Sequence[Mapping[str, Scalar]]) -> list[Difference]:
    names = dict.fromkeys(name for description in described for name in description)
    differences = []
    for name in names:
        values = [description.get(name) for description in described]
        # repr, because 1, 1.0 and True are equal, and NaN is not equal to itself
        if len({repr(value) for value in values}) > 1:
            differences.append(Difference(name, values))
    return differences


def _warnings(differing: Sequence[Difference], arms: Sequence[Arm]) -> list[str]:
    warnings = []
    names = [difference.name for difference in differing]
    models = ", ".join(filter(is_of_model, names))
    if models and any(arm.ratio and arm.ratio.verdict == DIFFERENT_MODELS for arm in arms):
        warnings.append(f"Different models ({models}): a ratio of their step times is no speed-up.")
    if workloads := ", ".join(filter(is_of_workload, names)):
        warnings.append(
            f"Steps do different work ({workloads}): a ratio of their times is no speed-up."
        )
    decisive = set().union(*(_DECISIVE[arm.clock] for arm in arms))
    values_by_name = {}
    for difference in differing:
        group, _, name = difference.name.partition(".")
        words = re.split(r"[^a-z]+", name.lower())
        if group == "environment" and not decisive.isdisjoint(words):
            values = ["unknown" if value is None else str(value) for value in difference.values]
            values_by_name[name] = _listed(arms, values)
    if len(values_by_name) == 1:
        ((name, listed),) = values_by_name.items()
        warnings.append(f"{name} differs ({listed}); this alone may change step times.")
    elif values_by_name:  # the table of differences has the values
        names_text = ", ".join(values_by_name)
        warnings.append(f"These differ, and each alone may change step times: {names_text}.")
    clocks = [arm.clock for arm in arms]
    if len(set(clocks)) > 1:
        warnings.append(f"Step times come from different clocks ({_listed(arms, clocks)}).")
    return warnings


def _listed(arms: Sequence[Arm], values: Sequence[str]) -> str:
    """Say who has which value; of many sessions, how many have it."""
    if len(arms) > _NAMED:
        counts = Counter(values).items()
        return ", ".join(f"{value}: {count} of {len(arms)}" for value, count in counts)
    return ", ".join(f"{arm.title}: {value}" for arm, value in zip(arms, values, strict=True))
