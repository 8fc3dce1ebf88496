"""The readers of claims about kernels: speed-ups, and differences from FP64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sessions.model import KERNELS, Segment
from sessions.studies.kernels import speedup
from sessions.verdicts import statistics
from workbench.claims._claim import Reading, Results, Unmeasured
from workbench.claims._read import Read


def kernel(operator: str, case: str, other: str = "triton", base: str = "torch") -> Read:
    """Return a reader of how many times faster one implementation of an operator is, forward."""

    def read(results: Results) -> Reading:
        first, second = (_kernel(results, operator, case, name) for name in (base, other))
        times = [statistics.steady_ms(segment) for segment in (first, second)]
        if not all(len(series) for series in times):
            slower = first if not len(times[0]) else second
            raise Unmeasured(str(slower.ledger.get("failure", "it was not timed")))
        faster = speedup(first, second)
        value, low, high = faster.ratios
        note = f"{case}: {1e3 * np.median(times[0]):.3g} us to {1e3 * np.median(times[1]):.3g} us"
        seconds = _timing_s(results, first)
        return Reading(value, low, high, rounds=faster.n, seconds=seconds, note=note)

    return read


def slowest_kernel(kernels: Sequence[tuple[str, str]]) -> Read:
    """Return the smallest speed-up of several kernels, each given as (operator, case).

    Any of them may be the slowest, so the interval goes from the least of their lower ends to the
    least of their upper ends, and is of the fewest rounds.
    """

    def read(results: Results) -> Reading:
        readings = [(kernel(operator, case)(results), operator) for operator, case in kernels]
        least, operator = min(readings, key=lambda pair: pair[0].value)
        low, high = (float(end) for end in np.min([r.ends for r, _ in readings], axis=0))
        note = f"the smallest speed-up: {operator} {least.note}"
        rounds = min(reading.rounds or 0 for reading, _ in readings)
        return replace(least, low=low, high=high, rounds=rounds, note=note)

    return read


def kernel_difference(operator: str, implementation: str, which: str = "max") -> Read:
    """Return a reader of an output's largest (or mean) difference from FP64's, over all cases."""

    def read(results: Results) -> Reading:
        values = [
            float(segment.ledger[f"{which}_difference"])
            for segment in results.segments
            if _is(segment, operator, "", implementation)
            and f"{which}_difference" in segment.ledger
        ]
        if not values:
            raise Unmeasured(f"{operator} did not run as {implementation}")
        return Reading(max(values))

    return read


def _timing_s(results: Results, segment: Segment) -> float:
    """Return the duration of a kernel case's rounds, times the cases that shared the budget."""

    def case(timed: Segment) -> tuple[str, str]:
        return timed.configuration.preset, str(timed.configuration.settings["case"])

    kernel_segments = [
        segment for segment in results.segments if segment.configuration.family == KERNELS
    ]
    ends = [
        known.steps["t_s"][end]
        for known in kernel_segments
        if case(known) == case(segment) and len(known.steps["t_s"])
        for end in (0, -1)
    ]
    return float(max(ends) - min(ends)) * len({case(segment) for segment in kernel_segments})


def _kernel(results: Results, operator: str, case: str, implementation: str) -> Segment:
    for segment in results.segments:
        if _is(segment, operator, case, implementation):
            return segment
    raise Unmeasured(f"{operator} {case} did not run as {implementation}")


def _is(segment: Segment, operator: str, case: str, implementation: str) -> bool:
    configuration = segment.configuration
    return (
        configuration.family == KERNELS
        and configuration.preset == operator
        and configuration.workload == "forward"
        and case in ("", configuration.settings["case"])
        and configuration.toggles["implementation"] == implementation
    )
