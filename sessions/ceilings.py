"""Words for a device's measured ceilings, and the share of them that a model's FLOPs reach."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from sessions.model import Ceilings, Segment
from sessions.numbers import moment, number
from sessions.verdicts.verdict_words import duration
from sessions.verdicts.work import INVALID as INVALID

UTILIZATION = "MFU"  # share of the *measured* matrix rate
FASTEST = "fastest_flops_per_s"  # the fact of a segment: its devices' highest rate of any dtype
# A correct step takes at least this share of its time at the ceilings. It may reach more than
# the largest product that was timed (an H100's data sheet has 1.43 times that), and may compute a
# part of what its formula counts (layers that end early).
SLACK = 0.5
_DAY_S = 86400.0


def describe(ceilings: Ceilings) -> str:
    """Return rates, device and date (not the age, which changes) in one line."""
    rates = ", ".join(
        f"{name} {matrix_rate(rate, name)}" for name, rate in ceilings.flops_per_s.items()
    )
    prefix = "" if ceilings.driver.startswith("threads") else "driver "
    driver = f", {prefix}{ceilings.driver}" if ceilings.driver else ""
    disturbed = f"; may be too low, because {ceilings.disturbed}" if ceilings.disturbed else ""
    return (
        f"copy {number(ceilings.bytes_per_s / 1e9)} GB/s, matrix products {rates}; measured on "
        f"{ceilings.device} (torch {ceilings.torch}{driver}), {moment(ceilings.created)}{disturbed}"
    )


def matrix_rate(rate: float, dtype: str) -> str:
    """Return a rate with its unit: integers have no floating point."""
    return f"{number(rate / 1e12)} {'TOP/s' if dtype.startswith('int') else 'TFLOP/s'}"


def lacking(ceilings: Ceilings) -> list[str]:
    """Return a sentence with the reason for each rate that the device lacks."""
    return [f"No {name} rate: {why}." for name, why in ceilings.lacking.items()]


def age(ceilings: Ceilings, now: float | None = None) -> str:
    """Return how long ago the ceilings were measured; ``now`` is Unix time."""
    seconds = (time.time() if now is None else now) - ceilings.created
    if seconds < 0:
        return "in the future according to this machine's clock"
    if seconds < 60:
        return "just now"
    if seconds < 2 * _DAY_S:
        return f"{duration(seconds)} ago"
    return f"{seconds / _DAY_S:.0f} days ago"


def utilization(segment: Segment, step_ms: float) -> float:
    """Return the model FLOPs utilization, 0 to 1 (Chowdhery et al., PaLM, 2022).

    It is the FLOPs that the model's mathematics needs for a step, over the step's time and the
    *measured* rate of a large matrix product. The rate is that of the dtype in which the step
    computes, or of the codes if linear layers multiply in 8 bits, though the rest of the step does
    not. NaN if FLOPs or rate are unknown.
    """
    flops = segment.ledger.get("model_flops")
    rate = segment.ledger.get("matrix_flops_per_s")
    known = all(isinstance(value, int | float) and value > 0 for value in (flops, rate))
    if not known or not step_ms > 0:
        return math.nan
    return float(flops) / (1e-3 * step_ms) / float(rate)  # type: ignore[arg-type]


def limit_ms(ledger: Mapping[str, Any]) -> float:
    """Return the least possible time of a step with these facts; NaN if it is not known.

    It is the time of the model's FLOPs at the highest rate that the device reached in any dtype,
    times ``SLACK``. Bytes do not count: caches hide some, and few rows of tables are read.
    """
    flops, rate = ledger.get("model_flops"), ledger.get(FASTEST)
    if not (isinstance(flops, int | float) and isinstance(rate, int | float) and rate > 0):
        return math.nan
    return SLACK * 1e3 * flops / rate


def impossible(step_ms: float, least_ms: float, device_type: str) -> str:
    """Return why a step cannot have taken ``step_ms``, as a clause; empty if it can."""
    if not step_ms < least_ms:
        return ""
    device = "GPU" if device_type == "cuda" else "CPU"
    return (
        f"a step is faster than this {device} can run it: {step_ms:.3g} ms measured, but its "
        f"FLOPs need at least {least_ms:.3g} ms at the device's highest rate"
    )


def doubt(segment: Segment, step_ms: float) -> str:
    """Return why a utilization above 100 % is impossible, and what to do; empty if it is lower."""
    if not utilization(segment, step_ms) > 1:
        return ""
    return f"{UTILIZATION} above 100 %: the ceiling is too low, run workbench ceilings --measure"


def ceiling_words(segment: Segment) -> str:
    """Return which ceiling the segment's utilization refers to, or why there is none."""
    ledger = segment.ledger
    rate, dtype = ledger.get("matrix_flops_per_s"), ledger.get("matrix_dtype")
    if not ledger.get("model_flops"):
        return "the model's FLOPs are not known"
    if not isinstance(rate, int | float):
        return "the device's matrix rate is not measured: run workbench ceilings --measure"
    when = ledger.get("ceilings_created")
    day = f", {moment(float(when))}" if isinstance(when, int | float) else ""
    return f"of {matrix_rate(rate, str(dtype))}, this device's measured {dtype} matrix rate{day}"
