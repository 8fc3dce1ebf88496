"""Sessions of timed kernels: each segment is one implementation at one case in one direction.

Their configurations name the family ``model.KERNELS``, the operator as preset, the direction as
workload, the case and the dtype as settings, the implementation as a toggle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sessions.model import KERNELS, Segment, Session
from sessions.numbers import interval_cells
from sessions.tables import Cell, Column, Measured, Table
from sessions.verdicts import statistics, verdict
from sessions.verdicts.rounds import calls, paired_logs

EAGER, COMPILED = "torch", "torch.compile"
_BEYOND = 1.1  # times the limit: kernels that mostly read may be above a copy
_NAMES = {EAGER: "PyTorch", COMPILED: "torch.compile"}

_COLUMNS = [
    Column("operator"),
    Column("case"),
    Column("dtype"),
    Column("direction"),
    Column("implementation"),
    Column("median", "µs"),
    Column("in kernels", "µs"),
    Column("host", "µs"),
    Column("outside launches", "µs"),
    Column("of the limit", "%"),
    Column("memory", "GB/s"),
    Column("arithmetic", "TFLOP/s"),
    Column(f"against {_NAMES[EAGER]}"),
    Column(f"{_NAMES[EAGER]}, from"),
    Column(f"{_NAMES[EAGER]}, to"),
    Column(f"against {_NAMES[COMPILED]}"),
    Column(f"{_NAMES[COMPILED]}, from"),
    Column(f"{_NAMES[COMPILED]}, to"),
    Column("error of allowed", "%"),
    Column("first call", "s"),
    Column("note"),
]


def kernels_table(session: Session) -> Table:
    """Return one row for each implementation that was timed or could not be, in order of timing.

    "Of the limit" is the time that the bytes and FLOPs of the mathematics need at the rates of a
    large copy and a large matrix product, measured in the same run, over the time taken. Speed-ups
    above 1 are faster; the ends of their 95 % intervals follow. "Host" is the wall time of
    a call on small inputs without waiting for the GPU. "Outside launches" is its part outside of
    Triton's launcher and the driver.
    """
    segments = [s for s in session.segments if s.configuration.family == KERNELS]
    return Table(session.title, _COLUMNS, [_row(segment, segments) for segment in segments])


def tuned_tiles(session: Session) -> str:
    """Return each tuned tile with its time, the heuristic's time and how long tuning took."""
    lines: dict[str, None] = {}
    took_s: dict[tuple[str, str], float] = {}  # equal for each direction of a case
    for segment in session.segments:
        if "autotune_s" in segment.ledger:
            case = (segment.configuration.preset, str(segment.configuration.settings["case"]))
            took_s[case] = float(segment.ledger["autotune_s"])
        lines |= dict.fromkeys(str(segment.ledger.get("tiles", "")).splitlines())
    return "\n".join([*lines, f"tuning took {sum(took_s.values()):.1f} s"])


@dataclass(frozen=True)
class Rated:
    """A timed kernel beside the rate that its work could reach at the ceilings of the same run."""

    operator: str
    case: str
    dtype: str
    direction: str
    implementation: str
    intensity: float  # FLOPs of the mathematics for each byte that it must move
    achieved: float  # FLOP/s
    attainable: float  # FLOP/s


@dataclass(frozen=True)
class Roof:
    """A device's measured ceilings in one dtype."""

    dtype: str
    bytes_per_s: float  # rate of a large copy
    flops_per_s: float  # rate of a large matrix product

    def at(self, intensity: ArrayLike) -> NDArray:
        """Return the FLOP/s that work of this intensity (FLOP a byte) can reach.

        Source: Williams, Waterman and Patterson, Roofline, CACM 52, 2009.
        """
        slope = self.bytes_per_s * np.asarray(intensity, np.float64)
        return np.minimum(slope, self.flops_per_s)


def rated(session: Session) -> list[Rated]:
    """Return every timed kernel whose work has FLOPs and bytes, in the order of timing."""
    kernels = []
    for segment in session.segments:
        configuration, ledger = segment.configuration, segment.ledger
        if configuration.family != KERNELS or (us := median_us(segment)) is None:
            continue
        flops, moved, floor_us = (float(ledger[name]) for name in ("flops", "bytes", "floor_us"))
        if flops > 0 and moved > 0 and floor_us > 0:
            kernels.append(
                Rated(
                    configuration.preset,
                    str(configuration.settings["case"]),
                    str(configuration.settings["dtype"]),
                    configuration.workload,
                    implementation_of(segment),
                    flops / moved,
                    1e6 * flops / us,
                    1e6 * flops / floor_us,
                )
            )
    return kernels


def roofs(session: Session) -> list[Roof]:
    """Return the ceilings that kernels were timed under, one for each matrix dtype."""
    roofs_by_dtype = {}
    for segment in session.segments:
        rates = [segment.ledger.get(name) for name in ("bytes_per_s", "flops_per_s")]
        if segment.configuration.family == KERNELS and all(rates):
            # Sessions of earlier versions have no roofs of 8-bit matrix units.
            plain = segment.configuration.settings["dtype"]
            dtype = str(segment.ledger.get("matrix_dtype", plain))
            roofs_by_dtype[dtype] = Roof(dtype, *(float(rate) for rate in rates if rate))
    return list(roofs_by_dtype.values())


def speedups(segment: Segment, session: Session) -> dict[str, dict[str, float | int]]:
    """Return how many times faster a kernel is than PyTorch, and than ``torch.compile``.

    Each has ``ratio``, the ends ``low`` and ``high`` of its 95 % interval (NaN if there is none),
    and the number of ``rounds``. Implementations that were not timed are left out.
    """
    segments = [other for other in session.segments if other.configuration.family == KERNELS]
    bases = [base for base in (EAGER, COMPILED) if base != implementation_of(segment)]
    ratios = {base: _against(segment, segments, base) for base in bases}
    return {
        base: dict(zip(("ratio", "low", "high"), ratio.ratios, strict=True)) | {"rounds": ratio.n}
        for base, ratio in ratios.items()
        if ratio is not None and math.isfinite(ratio.mean)
    }


def speedup(base: Segment, other: Segment) -> verdict.Interval:
    """Return the logarithm of how many times faster the second is, with its 95 % interval.

    Both in the same rounds, each a short block of calls of either, in random order: a round is a
    pair as in ``sessions.verdicts``, and the interval is that of a verdict. Single calls say
    less than their number: neighbours go together, and a clock that drifts while one ran after the
    other would count as a difference. Rounds take milliseconds, faster than a governor changes the
    clock for one of them, so that there is no second ratio in clock cycles. Without rounds, as in
    sessions of earlier versions, there is a ratio of medians and no interval.
    """
    logs = paired_logs(calls(base), calls(other))
    if len(logs):
        return verdict.interval(logs)
    times = [statistics.steady_ms(kernel) for kernel in (base, other)]
    if not all(map(len, times)):
        return verdict.interval(logs)
    medians_ms = [float(np.median(series)) for series in times]
    mean = math.log(medians_ms[0] / medians_ms[1]) if min(medians_ms) > 0 else math.nan
    return verdict.Interval(0, mean, math.nan, math.nan, math.nan)


def _row(segment: Segment, segments: Sequence[Segment]) -> list[Cell]:
    configuration, ledger = segment.configuration, segment.ledger
    us = median_us(segment)
    row: list[Cell] = [
        configuration.preset,
        str(configuration.settings["case"]),
        str(configuration.settings["dtype"]),
        configuration.workload,
        implementation_of(segment),
    ]
    if us is None:
        note = _last_line(ledger.get("failure", "")) or "not timed"
        return [*row, *[None] * 13, _percent(ledger.get("error")), ledger.get("first_s"), note]
    summary = statistics.summarize(statistics.steady_ms(segment))
    error_us = None if summary.error is None else 1e3 * summary.error
    share = ledger["floor_us"] / us
    return [
        *row,
        Measured(us, error_us),
        ledger.get("kernel_us"),
        ledger.get("host_us"),
        ledger.get("host_outside_us"),
        _percent(share),
        ledger["bytes"] / us / 1e3,
        ledger["flops"] / us / 1e6,
        *_speedup_cells(segment, segments, EAGER),
        *_speedup_cells(segment, segments, COMPILED),
        _percent(ledger.get("error")),
        ledger.get("first_s"),
        "; ".join(filter(None, (_last_line(ledger.get("failure", "")), _doubt(share)))),
    ]


def _doubt(share: float) -> str:
    """Return why a kernel may take clearly less than the least that its work needs; else empty."""
    if share <= _BEYOND:
        return ""
    return "faster than the limit: its data are in a cache, or the measured ceilings are too low"


def median_us(segment: Segment) -> float | None:
    """Return the median time of a kernel's steady calls; None if none took any time."""
    times = statistics.steady_ms(segment)
    median_ms = statistics.summarize(times).median
    return 1e3 * median_ms if median_ms > 0 else None


def _speedup_cells(segment: Segment, segments: Sequence[Segment], base: str) -> list[Cell]:
    """Return how many times faster it is than another implementation, with the interval."""
    ratio = _against(segment, segments, base)
    if ratio is None or not math.isfinite(ratio.mean):
        return [None] * 3
    value, low, high = ratio.ratios
    if not high > low:  # no interval, or the implementation against itself
        return [value, None, None]
    return interval_cells(value, low, high, verdict.REGION)


def _against(
    segment: Segment, segments: Sequence[Segment], implementation: str
) -> verdict.Interval | None:
    """Return ``speedup`` over the other implementation of the same case and direction, if any."""
    own_configuration = segment.configuration
    for other in segments:
        configuration = other.configuration
        same = (configuration.preset, configuration.workload, configuration.settings) == (
            own_configuration.preset,
            own_configuration.workload,
            own_configuration.settings,
        )
        if same and implementation_of(other) == implementation:
            return speedup(other, segment)
    return None


def _last_line(text: Any) -> str:
    return next(iter(str(text).strip().splitlines()[-1:]), "")


def implementation_of(segment: Segment) -> str:
    """Return the name of the implementation that a segment timed; empty for other segments."""
    return segment.configuration.toggles.get("implementation", "")


def _percent(share: float | None) -> Cell:
    return None if share is None else 100 * share
