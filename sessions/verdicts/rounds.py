"""Rounds: calls of several implementations in turn; each round makes a pair."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sessions.model import Segment
from sessions.verdicts import statistics

Calls = tuple[ArrayLike, ArrayLike]  # times of single calls, and the round of each, from 1 on


def paired_logs(base: Calls, other: Calls) -> NDArray:
    """Return the log ratio of median time, base over other, of each shared round: (rounds,)."""
    first, second = (_medians(*kernel) for kernel in (base, other))
    shared = [number for number in first if number in second and first[number] * second[number] > 0]
    return np.log([first[number] / second[number] for number in shared])


def calls(segment: Segment) -> Calls:
    """Return the steady calls of a segment that were timed in a round."""
    in_round = statistics.steady(segment) & (segment.steps["block"] > 0)
    return statistics.step_ms(segment)[in_round], segment.steps["block"][in_round]


def _medians(times: ArrayLike, rounds: ArrayLike) -> dict[int, float]:
    """Return the median time of each round."""
    series, numbers = np.asarray(times, np.float64), np.asarray(rounds, int)
    order = np.argsort(numbers, kind="stable")
    round_numbers, starts = np.unique(numbers[order], return_index=True)
    ends = np.append(starts, len(order))[1:]
    return {
        int(number): float(np.median(series[order[start:end]]))
        for number, start, end in zip(round_numbers, starts, ends, strict=True)
    }
