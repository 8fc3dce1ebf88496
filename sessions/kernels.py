"""Sessions of timed kernels: each segment is one implementation at one case in one direction.

Their configurations name the family ``model.KERNELS``, the operator as preset, the direction as
workload, the case and the dtype as settings, the implementation as a toggle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    Column("host", "us"),
    Column("outside launches", "us"),
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
    above 1 are faster. "Host" is the wall time of a call on small inputs, the GPU not waited for,
    "outside launches" what of it is not spent in Triton's launcher and the driver.
    """
    segments = [s for s in session.segments if s.configuration.family == KERNELS]
    return Table(session.title, _COLUMNS, [_row(segment, segments) for segment in segments])


def tuned_tiles(session: Session) -> str:
    """Each tile that was tuned, with its time and the heuristic's, and how long tuning took."""
    lines: dict[str, None] = {}
    took_s: dict[tuple[str, str], float] = {}  # each direction of a case tells the same
    for segment in session.segments:
        if "autotune_s" in segment.ledger:
            case = (segment.configuration.preset, str(segment.configuration.settings["case"]))
            took_s[case] = float(segment.ledger["autotune_s"])
        lines |= dict.fromkeys(str(segment.ledger.get("tiles", "")).splitlines())
    return "\n".join([*lines, f"tuning took {sum(took_s.values()):.1f} s"])


@dataclass(frozen=True)
class Rated:
    """A timed kernel against what its work could reach at the ceilings of the same run."""

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
    bytes_per_s: float  # of a large copy
    flops_per_s: float  # of a large matrix product

    def at(self, intensity: ArrayLike) -> NDArray:
        """FLOP/s that work of this intensity (FLOP a byte) can reach (Williams, Waterman and
        Patterson, Roofline, CACM 52, 2009).
        """
        slope = self.bytes_per_s * np.asarray(intensity, np.float64)
        return np.minimum(slope, self.flops_per_s)


def rated(session: Session) -> list[Rated]:
    """Every timed kernel whose work has FLOPs and bytes, in the order of timing."""
    found = []
    for segment in session.segments:
        configuration, ledger = segment.configuration, segment.ledger
        if configuration.family != KERNELS or (us := _median_us(segment)) is None:
            continue
        flops, moved, floor_us = (float(ledger[name]) for name in ("flops", "bytes", "floor_us"))
        if flops > 0 and moved > 0 and floor_us > 0:
            found.append(
                Rated(
                    configuration.preset,
                    str(configuration.settings["case"]),
                    str(configuration.settings["dtype"]),
                    configuration.workload,
                    _implementation(segment),
                    flops / moved,
                    1e6 * flops / us,
                    1e6 * flops / floor_us,
                )
            )
    return found


def roofs(session: Session) -> list[Roof]:
    """The ceilings that the session's kernels were timed under, one for each dtype of products."""
    found = {}
    for segment in session.segments:
        rates = [segment.ledger.get(name) for name in ("bytes_per_s", "flops_per_s")]
        if segment.configuration.family == KERNELS and all(rates):
            # Sessions of earlier versions have no roofs of 8-bit matrix units.
            plain = segment.configuration.settings["dtype"]
            dtype = str(segment.ledger.get("matrix_dtype", plain))
            found[dtype] = Roof(dtype, *(float(rate) for rate in rates if rate))
    return list(found.values())


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
        return [*row, *[None] * 9, _percent(ledger.get("error")), ledger.get("first_s"), note]
    summary = statistics.summarize(statistics.steady_ms(segment))
    error_us = None if summary.error is None else 1e3 * summary.error
    return [
        *row,
        Measured(us, error_us),
        ledger.get("kernel_us"),
        ledger.get("host_us"),
        ledger.get("host_outside_us"),
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
