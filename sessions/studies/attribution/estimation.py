"""Effects of toggles, estimated from arms that ran in interleaved rounds.

A *round* runs every arm once, in random order; an *arm* is the set of toggles that it switches on.
An *effect* is a contrast: a weighted sum, with weights that sum to 0, of the logarithms of the
arms' step times within one round. Influences that all blocks of a round share (clock, temperature,
drift) cancel, and the random order gives the rest a random sign. So the rounds behave like the
pairs of ``sessions.verdicts.verdict`` and get its interval, which holds however often one looks.

* **ladder**: toggles are added one after the other; each rung is compared with the rung before.
* **leave-one-out**: all toggles on, compared with all but one.
* **factorial**: every subset of up to five toggles. The *share* of a toggle is its Shapley value:
  its effect averaged over all orders in which the toggles can be added (Shapley, 1953), so that the
  shares of all toggles add up to the total. The *interaction* of two toggles is their combined
  effect over the product of their single effects, averaged over the settings of the others.
* **shapley**: shares from some random orders, for more than five toggles. The interval is widened
  by the uncertainty from the choice of orders (t over the orders; half of alpha for each).

A toggle may need another one. Then some arms are impossible, and in every order the toggle comes
after the one that it needs. Shares are averaged over these orders and still add up to the total.
Interactions are averaged over the settings in which both toggles can be switched. If a toggle is
left out, the toggles that need it are left out too.

Effects are ratios: 0.8 means that 20 % of the step time went away. Peak memory is counted by the
allocator and repeats exactly, so that its ratios have no interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from sessions.model import Judgement
from sessions.numbers import counted, margin_text
from sessions.studies.attribution.design import Contrast, Weights
from sessions.verdicts import verdict

# The verdict's sentences speak of pairs; here they are rounds.
_LEAST = f"of at least {verdict.MIN_PAIRS}"
_PAIRS_AS_ROUNDS = f"{_LEAST} pairs", f"{_LEAST} rounds"
WHOLE_STEP, BACKWARD = TIMED = ("step", "backward")  # the timed part of a step

Table = NDArray  # (rounds, arms): a number of each block, NaN where none counts


@dataclass(frozen=True)
class Effect:
    """The result of a contrast. ``judgement`` is None if it could not be measured."""

    contrast: Contrast
    judgement: Judgement | None
    reason: str = ""


def values(weights: Weights, logs: NDArray) -> NDArray:
    """Return the contrast in each round: logs (..., arms) to (...), NaN if an arm has no block."""
    total = np.zeros(logs.shape[:-1])
    for arm, weight in weights.items():
        if weight:
            total = total + weight * logs[..., arm]
    return total


def rounds(
    number: ArrayLike, arm: ArrayLike, value: ArrayLike, voids: Sequence[str], arms: int
) -> Table:
    """Return blocks as a table (rounds, arms) in the order of rounds; NaN where no block counts."""
    numbers, places = np.asarray(number, int), np.asarray(arm, int)
    rounds_run, rows = np.unique(numbers, return_inverse=True)
    table = np.full((len(rounds_run), arms), np.nan)
    counts = np.array([not void for void in voids], bool)
    table[rows[counts], places[counts]] = np.asarray(value, np.float64)[counts]
    return table


def measure(
    contrasts: Sequence[Contrast],
    medians_ms: Table,
    clocks_mhz: Table,
    means_ms: Table | None = None,
    *,
    region: float = verdict.REGION,
    floor: float = 0.0,
    half_width: float = verdict.HALF_WIDTH,
    seconds: float = math.nan,
    builds: NDArray | None = None,
    least_builds: int = 1,
) -> list[Effect]:
    """Return the effects on step time of rounds of block medians (rounds, arms).

    The SM clocks, and the blocks' means if known, have the same shape.

    FASTER and SLOWER are corrected for their number (Holm); the intervals are each 95 %.
    ``seconds`` is how long the rounds took, from which follows how much longer would decide.
    ``builds``: the build of all arms that each round ran in; ``least_builds`` are needed for a
    claim.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(medians_ms)
        means = np.full_like(logs, np.nan) if means_ms is None else np.log(means_ms)
        cycles = logs + np.log(clocks_mhz)
    built = np.zeros(len(logs), int) if builds is None else np.asarray(builds)
    limits = {
        "region": region,
        "floor": floor,
        "half_width": half_width,
        "seconds": seconds,
    }
    judgements = [
        None
        if contrast.reason
        else _judge(contrast, logs, cycles, means, built, least_builds, limits)
        for contrast in contrasts
    ]
    judged = iter(
        verdict.corrected([judgement for judgement in judgements if judgement is not None])
    )
    return [
        Effect(contrast, None if contrast.reason else next(judged), contrast.reason)
        for contrast in contrasts
    ]


def memory(contrasts: Sequence[Contrast], peak_bytes: ArrayLike) -> list[float]:
    """Return the same effects on peak memory, as ratios: bytes (arms); NaN if unknown."""
    logs = np.log(np.asarray(peak_bytes, np.float64))
    return [
        math.nan if contrast.reason else float(np.exp(values(contrast.weights, logs)))
        for contrast in contrasts
    ]


def typical_ms(medians_ms: Table) -> list[float]:
    """Return the median of each arm's block medians; NaN if there are none."""
    finite_ms = [column[np.isfinite(column)] for column in medians_ms.T]
    return [float(np.median(column)) if len(column) else math.nan for column in finite_ms]


def against_first(medians_ms: Table) -> list[verdict.Interval]:
    """Compute each arm's log ratio to the first, paired within rounds."""
    logs = np.log(medians_ms)
    differences = logs - logs[:, :1]
    return [verdict.interval(column[np.isfinite(column)]) for column in differences.T]


def settled(effects: Sequence[Effect]) -> bool:
    """Return True if every measurable effect is as narrow as requested."""
    judged = [effect.judgement for effect in effects if effect.judgement is not None]
    return bool(judged) and all(judgement.settled for judgement in judged)


def more_s(effects: Sequence[Effect]) -> float | None:
    """Return how much longer should decide every effect that time can decide; None without any."""
    judged = [effect.judgement for effect in effects if effect.judgement is not None]
    return max(
        (judgement.more_s for judgement in judged if judgement.more_s is not None), default=None
    )


def _judge(
    contrast: Contrast,
    logs: NDArray,
    cycles: NDArray,
    means: NDArray,
    builds: NDArray,
    least_builds: int,
    limits: Mapping[str, float],
) -> Judgement:
    effect_logs = values(contrast.weights, logs)
    is_finite = np.isfinite(effect_logs)
    cycle_logs, mean_logs = (
        values(contrast.weights, table)[is_finite] for table in (cycles, means)
    )
    alpha = verdict.ALPHA / 2 if contrast.orders else verdict.ALPHA
    judgement = verdict.judge_pairs(
        verdict.Pairs(
            np.flatnonzero(is_finite),
            effect_logs[is_finite],
            cycle_logs,
            mean_logs,
            builds[is_finite],
        ),
        (),
        alpha=alpha,
        least_builds=least_builds,
        **limits,
    )
    judgement = msgspec.structs.replace(
        judgement,
        reasons=[reason.replace(*_PAIRS_AS_ROUNDS) for reason in judgement.reasons],
    )
    if len(contrast.orders) < 2 or judgement.low is None:
        return judgement
    return _widened(contrast, logs, judgement, math.log1p(max(limits["region"], limits["floor"])))


def _widened(contrast: Contrast, logs: NDArray, judgement: Judgement, margin: float) -> Judgement:
    """Return the judgement with the interval of the orders added, by Bonferroni's inequality.

    ``settled`` stays that of the rounds: more rounds do not narrow the part of the orders.
    """
    from scipy import special  # slow to load, and the window imports this package

    marginals = [np.nanmean(values(order, logs)) for order in contrast.orders]
    count = len(marginals)
    error = float(np.std(marginals, ddof=1)) / math.sqrt(count)
    reach = float(special.stdtrit(count - 1, 1 - verdict.ALPHA / 4)) * error
    assert judgement.ratio is not None and judgement.low is not None and judgement.high is not None
    mean, low, high = (math.log(end) for end in (judgement.ratio, judgement.low, judgement.high))
    wide = verdict.Interval(judgement.pairs, mean, low - reach, high + reach, error)
    decision, reasons = verdict.decide(wide, margin)
    if judgement.verdict == "UNDECIDED":
        # The judgement has its reasons: too few pairs, or clocks or means disagree.
        decision, reasons = "UNDECIDED", []
    distance = max(0.0, (abs(mean) - margin) / 2)
    p_orders = 2 * float(special.stdtr(count - 1, -distance / error)) if error else 0.0
    effect_logs = values(contrast.weights, logs)
    p_rounds = verdict.p_value(
        verdict.interval(effect_logs[np.isfinite(effect_logs)]), margin + distance
    )
    spread = f"{margin_text(reach)}"
    reasons.append(
        f"sampling {counted(count, 'order')} of the toggles widens the interval by {spread}"
    )
    return msgspec.structs.replace(
        judgement,
        verdict=decision,
        low=wide.ratios[1],
        high=wide.ratios[2],
        p=min(1.0, p_orders + p_rounds),
        more_s=None,  # more rounds of the same orders would not decide
        reasons=[*judgement.reasons, *reasons],
    )
