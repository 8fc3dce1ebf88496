"""Statistics of a range of the timeline, and explanations of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sessions.model import Event, Phase, Segment, Session
from sessions.numbers import counted
from sessions.sizes import size_text
from workbench.charts.units import MEGAHERTZ, MILLISECONDS

NEAR_S = 0.5  # from a step to an event that may explain it
_CLOCK_DROP = 0.02  # drop of the median clock that may explain a slow step
_GROWTH = 2**20  # bytes that the allocator took, from which it is worth a word
_OTHERS_PERCENT = 5.0  # percent of the device used by other processes
_NEARBY = 20  # steps on either side whose clock and memory are compared


@dataclass(frozen=True)
class RangeStatistics:
    """Steps between two times: how many, their times, their memory."""

    seconds: float
    steps: int
    steady: int
    median_ms: float
    p95_ms: float
    peak_bytes: float

    def text(self) -> str:
        """Return one line; it omits values that were not measured."""
        steps = counted(self.steps, "step")
        if self.steady != self.steps:
            steps += f" ({self.steady:,} steady)"
        parts = [steps]
        if math.isfinite(self.median_ms):
            parts.append(f"median {MILLISECONDS.text(self.median_ms)}")
            parts.append(f"p95 {MILLISECONDS.text(self.p95_ms)}")
        if math.isfinite(self.peak_bytes):
            parts.append(f"peak {size_text(self.peak_bytes)}")
        return ", ".join(parts)


def step_ms(segment: Segment) -> np.ndarray:
    """Return the step times (n,) of a segment, by GPU events where there are any."""
    gpu_ms = segment.steps["gpu_ms"]
    return gpu_ms if np.isfinite(gpu_ms).any() else segment.steps["wall_ms"]


def measure_range(
    segments: Sequence[Segment], first_s: float, last_s: float, seconds: float
) -> RangeStatistics:
    """Return the statistics of the steps that began between two times of the session.

    Median and 95th percentile are of steady steps, or of all steps where none is steady.
    """
    times, steady, peaks = [], [], []
    for segment in segments:
        start, stop = np.searchsorted(segment.steps["t_s"], (first_s, last_s))
        if stop > start:
            times.append(step_ms(segment)[start:stop])
            steady.append(segment.steps["phase"][start:stop] == Phase.STEADY)
            memory = segment.steps["peak"][start:stop]
            peaks.append(float(np.fmax.reduce(memory)))
    taken = np.concatenate([np.empty(0), *times])
    is_steady = np.concatenate([np.empty(0, bool), *steady])
    counted = taken[is_steady] if is_steady.any() else taken
    counted = counted[np.isfinite(counted)]
    median, p95 = np.percentile(counted, (50, 95)) if len(counted) else (math.nan, math.nan)
    known = [peak for peak in peaks if math.isfinite(peak)]
    return RangeStatistics(
        seconds, len(taken), int(is_steady.sum()), float(median), float(p95),
        max(known, default=math.nan),
    )  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One step of a segment: its row, when it began and how long it took."""

    segment: Segment
    row: int
    t_s: float
    ms: float


def slowest_step(segments: Sequence[Segment], first_s: float, last_s: float) -> Step | None:
    """Return the slowest steady step between two times, against the median of its segment.

    Without steady steps it is the slowest of all steps.
    """
    steps: list[tuple[bool, float, Step]] = []
    for segment in segments:
        start, stop = np.searchsorted(segment.steps["t_s"], (first_s, last_s))
        taken = np.asarray(step_ms(segment)[start:stop], np.float64)
        phases = segment.steps["phase"][start:stop]
        median = _steady_median(segment)
        for is_steady in (True, False):
            candidates = np.isfinite(taken) & ((phases == Phase.STEADY) == is_steady)
            if candidates.any():
                row = int(np.argmax(np.where(candidates, taken, -np.inf)))
                ratio = float(taken[row]) / (median if median > 0 else 1.0)
                steps.append((is_steady, ratio, step_at(segment, int(start) + row)))
    return max(steps, key=lambda item: item[:2])[2] if steps else None


def _steady_median(segment: Segment) -> float:
    """Return the median time of a segment's steady steps; NaN without any."""
    taken = step_ms(segment)
    steady = taken[(segment.steps["phase"] == Phase.STEADY) & np.isfinite(taken)]
    return float(np.median(steady)) if len(steady) else math.nan


def nearest_step(segments: Sequence[Segment], t_s: float, within_s: float) -> Step | None:
    """Return the step whose beginning is nearest to a time, at most ``within_s`` from it."""
    nearest: Step | None = None
    for segment in segments:
        times = segment.steps["t_s"]
        middle = int(np.searchsorted(times, t_s))
        for row in range(max(0, middle - 1), min(len(times), middle + 1)):
            if abs(times[row] - t_s) <= within_s:
                nearest, within_s = step_at(segment, row), abs(float(times[row]) - t_s)
    return nearest


def step_at(segment: Segment, row: int) -> Step:
    """Return one step of a segment."""
    return Step(segment, row, float(segment.steps["t_s"][row]), float(step_ms(segment)[row]))


def explain_step(session: Session, step: Step) -> list[str]:
    """Return the facts about a step as short clauses: the cause may be among them."""
    segment, row = step.segment, step.row
    steps, median = segment.steps, _steady_median(segment)
    clauses: list[str] = []
    if median > 0 and math.isfinite(step.ms):
        clauses.append(f"{step.ms / median:.2f} x the segment's median")
    phase = int(steps["phase"][row])
    if phase != Phase.STEADY:
        clauses.append(f"phase: {Phase(phase).title}")
    if int(steps["block"][row]):
        clauses.append("in a block of pairing")
    if row and steps["reserved"][row] - steps["reserved"][row - 1] > _GROWTH:
        grown = float(steps["reserved"][row] - steps["reserved"][row - 1])
        clauses.append(f"the allocator took {size_text(grown)}")
    clauses += _device_clauses(session, step)
    clauses += [event.text for event in events_near(session, step)]
    return clauses


def events_near(session: Session, step: Step) -> list[Event]:
    """Return the events during a step or shortly before or after it."""
    stop_s = step.t_s + 1e-3 * (step.ms if math.isfinite(step.ms) else 0.0)
    return [event for event in session.events if step.t_s - NEAR_S <= event.t_s <= stop_s + NEAR_S]


def _device_clauses(session: Session, step: Step) -> list[str]:
    """Return what telemetry shows of the step: a lower clock, other processes."""
    clauses = []
    for device, table in session.telemetry.items():
        times = table["t_s"]
        stop_s = step.t_s + 1e-3 * (step.ms if math.isfinite(step.ms) else 0.0)
        first = max(0, int(np.searchsorted(times, step.t_s)) - 1)
        rows = slice(first, max(first + 1, int(np.searchsorted(times, stop_s, "right"))))
        nearby = slice(max(0, first - _NEARBY), first + _NEARBY)
        clock, usual = table["sm_clock"][rows], table["sm_clock"][nearby]
        if np.isfinite(clock).any() and np.isfinite(usual).any():
            lowest, median = float(np.nanmin(clock)), float(np.nanmedian(usual))
            if lowest < (1 - _CLOCK_DROP) * median:
                share = 100 * (1 - lowest / median)
                text = MEGAHERTZ.text(lowest, digits=4)
                clauses.append(f"{device.upper()} at {text}, {share:.0f} % below its median")
        busy = table["others"][rows]
        if np.isfinite(busy).any() and (most := float(np.nanmax(busy))) > _OTHERS_PERCENT:
            clauses.append(f"other processes used {most:.0f} % of {device.upper()}")
    return clauses
