"""Sessions of timed kernels: each segment is one implementation at one case in one direction.

Their configurations name the family ``model.KERNELS``, the operator as preset, the direction as
workload, the case and the dtype as settings, the implementation as a toggle.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sessions import statistics
from sessions.model import KERNELS, Segment, Session
from sessions.tables import Cell, Column, Measured, Table

EAGER, COMPILED = "torch", "torch.compile"

_COLUMNS = [
    Column("operator"),
    Column("case"),
    Column("dtype"),
    Column("direction"),
    Column("implementation"),
    Column("median", "us"),
    Column("in kernels", "us"),
    Column("of the limit", "%"),
    Column("memory", "GB/s"),
    Column("arithmetic", "TFLOP/s"),
    Column("against PyTorch"),
    Column("against torch.compile"),
    Column("error of allowed", "%"),
    Column("first call", "s"),
    Column("note"),
]


def kernels_table(session: Session) -> Table:
    """One row for each implementation that was timed or could not be, in the order of timing.

    "Of the limit" is the time that the bytes and FLOPs of the mathematics need at the rates of a
    large copy and a large matrix product, measured in the same run, over the time taken. Speed-ups
    above 1 are faster.
    """
    segments = [s for s in session.segments if s.configuration.family == KERNELS]
    return Table(session.title, _COLUMNS, [_row(segment, segments) for segment in segments])


def speedup(base: ArrayLike, other: ArrayLike) -> tuple[float, float, float]:
    """How many times faster the second is, with its 95 % interval: times of single calls.

    Ratio of medians; percentile bootstrap over the calls, which were made with cold caches one
    implementation after the other, so that a clock that changed between the two is not seen.
    """
    from scipy import stats  # slow to load, where nothing is computed too

    samples = (np.asarray(base, np.float64), np.asarray(other, np.float64))

    def ratio(first: NDArray, second: NDArray, axis: int) -> NDArray:
        return np.asarray(np.median(first, axis=axis) / np.median(second, axis=axis))

    found = stats.bootstrap(
        samples,
        ratio,
        vectorized=True,
        method="percentile",
        random_state=np.random.default_rng(0),
    ).confidence_interval
    return float(ratio(*samples, axis=0)), float(found.low), float(found.high)


def _row(segment: Segment, segments: Sequence[Segment]) -> list[Cell]:
    configuration, ledger = segment.configuration, segment.ledger
    us = _median_us(segment)
    row: list[Cell] = [
        configuration.preset,
        str(configuration.settings["case"]),
        str(configuration.settings["dtype"]),
        configuration.workload,
        _implementation(segment),
    ]
    if us is None:
        note = str(ledger.get("failure", "not timed")).strip().splitlines()[-1]
        return [*row, *[None] * 7, _percent(ledger.get("error")), ledger.get("first_s"), note]
    summary = statistics.summarize(statistics.steady_ms(segment))
    error_us = None if summary.error is None else 1e3 * summary.error
    return [
        *row,
        Measured(us, error_us),
        ledger.get("kernel_us"),
        _percent(ledger["floor_us"] / us),
        ledger["bytes"] / us / 1e3,
        ledger["flops"] / us / 1e6,
        _speedup(segment, us, segments, EAGER),
        _speedup(segment, us, segments, COMPILED),
        _percent(ledger.get("error")),
        ledger.get("first_s"),
        "",
    ]


def _median_us(segment: Segment) -> float | None:
    times = statistics.steady_ms(segment)
    return 1e3 * statistics.summarize(times).median if len(times) else None


def _speedup(segment: Segment, us: float, segments: Sequence[Segment], implementation: str) -> Cell:
    """How many times faster than the other implementation of the same case and direction."""
    own = segment.configuration
    for other in segments:
        configuration = other.configuration
        same = (configuration.preset, configuration.workload, configuration.settings) == (
            own.preset,
            own.workload,
            own.settings,
        )
        if same and _implementation(other) == implementation:
            base_us = _median_us(other)
            return None if base_us is None else base_us / us
    return None


def _implementation(segment: Segment) -> str:
    return segment.configuration.toggles.get("implementation", "")


def _percent(share: float | None) -> Cell:
    return None if share is None else 100 * share
