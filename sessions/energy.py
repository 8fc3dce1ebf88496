"""Energy of steps, by the counter of the device: joules a step, tokens a joule, cost and CO2.

The counter is read every second or so, and a driver updates it at its own pace. So only stretches
of steady steps that last ``LEAST_S`` count, from the first reading within to the last. It counts
the whole device: a GPU with all that runs on it, or the packages of a CPU. The energy of a step
that several GPUs share is the sum of theirs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sessions.model import ABSENT, SAMPLING, Segment, Session
from sessions.numbers import Cell
from sessions.tables import Column, Table
from sessions.verdicts.statistics import steady

LEAST_S = 5.0  # seconds of steady steps between the first and the last reading
LEAST_READINGS = 3
COLUMN = "energy_j"
DEVICES = "devices"  # the fact of a segment: how many GPUs share its steps, if several do
JOULES_PER_KWH = 3.6e6
# A user sets the price and emissions of a kilowatt hour: they differ by place and contract.
PRICE_VARIABLE, CO2_VARIABLE = "WORKBENCH_PRICE_PER_KWH", "WORKBENCH_CO2_G_PER_KWH"


@dataclass(frozen=True)
class Energy:
    """Energy of a segment's steady steps; ``why_not`` is a clause if it was not measured."""

    joules_per_step: float = math.nan
    tokens_per_joule: float = math.nan
    seconds: float = 0.0
    why_not: str = ""


def energy_of(session: Session, segment: Segment) -> Energy:
    """Return the energy of a segment by the counters of the devices that share its steps.

    These are the first devices of the session that have one.
    """
    counters = [table for table in session.telemetry.values() if _has_counter(table)]
    if not counters:
        sampling = session.environment.get(f"{SAMPLING}{COLUMN}", "")
        reason = sampling.removeprefix(ABSENT) if sampling.startswith(ABSENT) else ""
        return Energy(why_not=reason or "this device has no energy counter")
    devices = int(segment.ledger.get(DEVICES) or 1)
    if len(counters) < devices:
        return Energy(why_not=f"only {len(counters)} of {devices} devices have an energy counter")
    starts = np.asarray(segment.steps["t_s"])
    stretches = [starts[first:last] for first, last in _stretches(steady(segment))]
    # Joules, seconds and steps of each counter.
    sums = [
        np.sum([(0.0, 0.0, 0.0)] + [_measure(counter, stretch) for stretch in stretches], axis=0)
        for counter in counters[:devices]
    ]
    seconds = float(min(counted_s for _, counted_s, _ in sums))
    if not seconds:
        return Energy(why_not=f"fewer than {LEAST_S:g} s of uninterrupted steady steps")
    per_step = float(sum(joules / steps for joules, _, steps in sums))
    tokens = float(segment.ledger.get("tokens_per_step") or math.nan)
    return Energy(per_step, tokens / per_step if per_step > 0 else math.nan, seconds)


def energy_table(session: Session, environment: Mapping[str, str] | None = None) -> Table:
    """Return one row for each segment; cost and CO2 of a million steps where they are set."""
    settings = os.environ if environment is None else environment
    price, grams = (_setting(settings, name) for name in (PRICE_VARIABLE, CO2_VARIABLE))
    kinds = {segment.configuration.throughput_unit for segment in session.segments}
    counted = kinds.pop() if len(kinds) == 1 else "tokens or samples"
    columns = [Column("segment"), Column("energy a step", "J"), Column(counted, "1/J")]
    columns += [Column("measured", "s"), Column("cost of a million steps")]
    columns += [Column("CO2 of a million steps", "kg"), Column("note")]
    rows: list[list[Cell]] = []
    for segment in session.segments:
        energy = energy_of(session, segment)
        kwh = energy.joules_per_step * 1e6 / JOULES_PER_KWH
        rows.append(
            [
                segment.title,
                _cell(energy.joules_per_step),
                _cell(energy.tokens_per_joule),
                _cell(energy.seconds or math.nan),
                _cell(kwh * price),
                _cell(kwh * grams / 1000),
                energy.why_not or None,
            ]
        )
    notes = [f"Set {PRICE_VARIABLE} and {CO2_VARIABLE} for cost and CO2."]
    return Table("Energy", columns, rows, notes if math.isnan(price + grams) else [])


def has_counter(session: Session) -> bool:
    """Return True if a device of the session has an energy counter."""
    return bool(session.segments) and any(map(_has_counter, session.telemetry.values()))


def _has_counter(table: Mapping[str, NDArray]) -> bool:
    return COLUMN in table and bool(np.isfinite(table[COLUMN]).any())


def _stretches(is_steady: NDArray) -> list[tuple[int, int]]:
    """Return where steady steps follow one another: first, and one past the last."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_steady, [False]]).astype(int)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _measure(counter: Mapping[str, NDArray], starts: NDArray) -> tuple[float, float, float]:
    """Return joules, seconds and steps between the readings within a stretch; zeros if too few."""
    if len(starts) < 2:
        return 0.0, 0.0, 0.0
    times, values = np.asarray(counter["t_s"]), np.asarray(counter[COLUMN])
    inside = np.isfinite(values) & (times >= starts[0]) & (times <= starts[-1])
    times, values = times[inside], values[inside]
    if len(times) < LEAST_READINGS or times[-1] - times[0] < LEAST_S:
        return 0.0, 0.0, 0.0
    if values[-1] < values[0]:  # the driver was loaded anew
        return 0.0, 0.0, 0.0
    numbers = np.interp(times[[0, -1]], starts, np.arange(len(starts)))  # steps made by then
    return float(values[-1] - values[0]), float(times[-1] - times[0]), float(np.diff(numbers)[0])


def _setting(settings: Mapping[str, str], name: str) -> float:
    """Return a number from a variable; NaN if it is missing or not a number of at least 0."""
    try:
        value = float(settings.get(name, ""))
    except ValueError:
        return math.nan
    return value if 0 <= value < math.inf else math.nan


def _cell(value: float) -> Cell:
    return value if math.isfinite(value) else None
