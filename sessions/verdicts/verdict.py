"""The verdict of a paired comparison: FASTER, SLOWER, SAME or UNDECIDED, with its interval.

The unit is a *pair*: one block of steps of each arm, run one after the other, and the log ratio of
their median step times. Steps are correlated and clocks drift, but influences that two neighbouring
blocks share cancel. If the order within each pair is random, the rest has a random sign, so the log
ratios behave like independent ones. A median ignores the cost of a few slow steps in each block: a
verdict becomes UNDECIDED if the interval of the blocks' mean step times refutes it.

**Looking often costs nothing here**: the interval is valid at every look
(``sessions.verdicts.intervals``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from sessions.model import Judgement, PairedComparison
from sessions.numbers import counted, interval_text, margin_text
from sessions.verdicts.builds import LEAST_BUILDS as LEAST_BUILDS
from sessions.verdicts.intervals import MIN_PAIRS as MIN_PAIRS
from sessions.verdicts.intervals import Interval as Interval
from sessions.verdicts.intervals import Pairs as Pairs
from sessions.verdicts.intervals import fixed_interval as fixed_interval
from sessions.verdicts.intervals import interval as interval
from sessions.verdicts.intervals import load as load
from sessions.verdicts.intervals import p_value as p_value
from sessions.verdicts.intervals import pairs as pairs
from sessions.verdicts.martingale import ALPHA as ALPHA
from sessions.verdicts.martingale import critical as critical
from sessions.verdicts.martingale import paths as paths

REGION = 0.01  # practical equivalence: ratios from 1 / 1.01 to 1.01 are the same
HALF_WIDTH = 0.005  # half the interval of the log ratio at which measuring ends
_EACH = 40  # pairs that are all checked
LONGEST_S = 86_400.0  # no verdict is promised beyond a day more


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values by Holm's step-down, in the order given (Scand. J. Statistics 6, 1979)."""
    adjusted = [1.0] * len(p_values)
    highest = 0.0
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def judge(
    comparison: PairedComparison,
    *,
    region: float = REGION,
    floor: float = 0.0,
    half_width: float = HALF_WIDTH,
    seconds: float = math.nan,
    alpha: float = ALPHA,
    least_builds: int = 1,
) -> Judgement:
    """Return the judgement of the blocks so far: the second arm against the first.

    ``region``: arms whose ratio is within it of 1 are the same in practice. ``floor``: the
    difference that identical arms showed on this machine; the larger of the two counts.
    ``seconds``: duration of the pairs, to estimate the time until a decision. ``least_builds``:
    builds of both arms that a claim needs.
    """
    return judge_pairs(
        pairs(comparison),
        comparison.voids,
        region=region,
        floor=floor,
        half_width=half_width,
        seconds=seconds,
        alpha=alpha,
        least_builds=least_builds,
    )


def judge_pairs(
    paired: Pairs,
    voids: Sequence[str] = (),
    *,
    region: float = REGION,
    floor: float = 0.0,
    half_width: float = HALF_WIDTH,
    seconds: float = math.nan,
    alpha: float = ALPHA,
    least_builds: int = 1,
) -> Judgement:
    """Judge pairs already made, as ``judge`` does.

    ``voids`` says of each block why it does not count.
    """
    every = np.ones(len(paired.logs), bool)
    time = interval(paired.logs, alpha, paired.builds_of(every), least_builds)
    builds = max(1, len(set(paired.builds.tolist()))) if time.builds is None else time.builds.n
    margin = math.log1p(max(region, floor))
    verdict, reasons = decide(time, margin)
    more_s = None
    if verdict == "UNDECIDED":
        more_s = seconds_to_tell(time, math.copysign(margin, time.mean), seconds)
        if time.n >= MIN_PAIRS and builds < least_builds:
            reasons = [f"measured {builds} of at least {least_builds} builds"]
            if more_s is not None:
                more_s = max(more_s, (least_builds - builds) * seconds / builds)
    timed = np.isfinite(paired.mean_logs)
    means = None
    if timed.sum() >= MIN_PAIRS:
        means = interval(paired.mean_logs[timed], alpha, paired.builds_of(timed), least_builds)
    if means is not None and (refuted := _refuted(verdict, time, means, margin)):
        reasons.append(refuted)
        verdict, more_s = "UNDECIDED", None  # more of the same would only confirm it
    known = np.isfinite(paired.cycle_logs)
    cycles = None
    if known.any():
        cycles = interval(paired.cycle_logs[known], alpha, paired.builds_of(known), least_builds)
    count = f"the clock was known for {known.sum()} of {counted(known.size, 'pair')}"
    if verdict in ("FASTER", "SLOWER") and cycles is not None and known.sum() >= MIN_PAIRS:
        if not known.all():
            reasons.append(f"{count}: only those count in clock cycles")
        agrees = cycles.high < 0 if verdict == "FASTER" else cycles.low > 0
        if not agrees:
            reasons.append(
                f"by time it is {verdict}, but in clock cycles the ratio is "
                f"{_ratio_text(cycles, margin)}: the arms ran at different clocks"
            )
            verdict = "UNDECIDED"
            if cycles.mean * time.mean > 0:  # otherwise more pairs would only confirm the conflict
                more_s = seconds_to_tell(cycles, 0.0, seconds)
    elif verdict in ("FASTER", "SLOWER"):
        few = (
            f"{count}, but {MIN_PAIRS} are needed" if known.any() else "the clock is not known here"
        )
        reasons.append(f"{few}: not confirmed in clock cycles")
    if floor > region:
        reasons.append(
            f"identical arms differ by up to {margin_text(floor)} on this machine, "
            "so smaller differences are not claimed"
        )
    reasons += _about_voids(voids)
    ratio, low, high = _ratios(time)
    return Judgement(
        verdict=verdict,
        pairs=time.n,
        ratio=ratio,
        low=low,
        high=high,
        cycles=None if cycles is None else _ratios(cycles),
        of_means=None if means is None else _ratios(means),
        p=p_value(time, margin),
        settled=time.n >= MIN_PAIRS and time.half_width <= half_width,
        more_s=more_s,
        builds=max(1, builds),
        reasons=reasons,
    )


def invalidated(judgement: Judgement, why: str) -> Judgement:
    """Return the judgement without a verdict, because a measured time cannot be true."""
    return msgspec.structs.replace(
        judgement,
        verdict="UNDECIDED",
        p=1.0,
        settled=False,
        more_s=None,
        invalid=why,
        reasons=[why, *judgement.reasons],
    )


def corrected(judgements: Sequence[Judgement], alpha: float = ALPHA) -> list[Judgement]:
    """Return the judgements of comparisons that are read side by side, by Holm's correction.

    A FASTER or SLOWER whose adjusted p value is above ``alpha`` becomes UNDECIDED and says so.
    """
    adjusted = holm([judgement.p for judgement in judgements])
    corrected_judgements = []
    for judgement, p in zip(judgements, adjusted, strict=True):
        if judgement.verdict in ("FASTER", "SLOWER") and p > alpha:
            reason = (
                f"{judgement.verdict} without correction, but its p value among {len(judgements)} "
                f"comparisons (Holm) is {p:.2g}"
            )
            judgement = msgspec.structs.replace(
                judgement, verdict="UNDECIDED", reasons=[reason, *judgement.reasons]
            )
        corrected_judgements.append(msgspec.structs.replace(judgement, p=p))
    return corrected_judgements


def seconds_to_tell(time: Interval, edge: float, seconds: float) -> float | None:
    """Return how long to measure on until the interval should leave out ``edge``, a log ratio.

    ``seconds`` is how long the pairs so far took. Below ``MIN_PAIRS`` the scatter is unknown: it
    is the time until there are so many. None where it is not known, or more than ``LONGEST_S``.
    """
    if not time.n or not seconds > 0:
        return None
    seconds_per_pair = seconds / time.n
    if time.n < MIN_PAIRS:
        return seconds_per_pair * (MIN_PAIRS - time.n)
    if not time.deviation > 0:
        return None
    distance = abs(time.mean - edge)
    n = time.n + 1
    plain = float(critical(time.n)) * time.deviation / math.sqrt(time.n)
    stretch = time.half_width / plain if time.half_width > 0 and math.isfinite(plain) else 1.0
    while stretch * float(critical(n)) * time.deviation / math.sqrt(n) > distance:
        n += max(1, n // 16)
        if (n - time.n) * seconds_per_pair > LONGEST_S:
            return None
    return (n - time.n) * seconds_per_pair


def is_look(n: int) -> bool:
    """Return True if pair ``n`` is to be judged: each of the first 40, then after 5 % more."""
    if n <= _EACH:
        return True
    looks, before = (math.floor(math.log(pairs / _EACH, 1.05)) for pairs in (n, n - 1))
    return looks > before


def reading(time: Interval, margin: float) -> str:
    """Return the verdict by where the interval of a log ratio lies against ``+-margin``."""
    if time.high < -margin:
        return "FASTER"
    if time.low > margin:
        return "SLOWER"
    return "SAME" if -margin <= time.low and time.high <= margin else "UNDECIDED"


def decide(time: Interval, margin: float) -> tuple[str, list[str]]:
    """Return the verdict of enough pairs by their interval, and why it is undecided."""
    if time.n < MIN_PAIRS:
        return "UNDECIDED", [f"measured {time.n} of at least {MIN_PAIRS} pairs"]
    verdict = reading(time, margin)
    undecided = [f"the interval crosses the limit of ±{margin_text(math.expm1(margin))}"]
    return verdict, undecided if verdict == "UNDECIDED" else []


def is_rejected(comparison: PairedComparison) -> bool:
    """Return True if the verdict does not trust the interval, however clear that is.

    There were too few pairs or builds, the arms ran at different clocks, or the mean step times
    refute the medians.
    """
    margin = math.log1p(region_of(comparison))
    low, high = comparison.low, comparison.high
    known = min(low, comparison.ratio) > 0 and high < math.inf
    if comparison.verdict != "UNDECIDED" or not known:
        return False
    n = int(comparison.facts.get("pairs", MIN_PAIRS))
    time = Interval(n, math.log(comparison.ratio), math.log(low), math.log(high), math.nan)
    return n < MIN_PAIRS or reading(time, margin) != "UNDECIDED"


def _refuted(verdict: str, time: Interval, means: Interval, margin: float) -> str:
    """Return how the mean step times, whose log ratios are ``means``, refute a verdict by medians.

    Without a verdict, test the one that more pairs can be expected to give.
    """
    claim = f"it is {verdict}"
    if verdict == "UNDECIDED":
        if time.n < MIN_PAIRS:
            return ""
        verdict = "FASTER" if time.mean < 0 else "SLOWER"
        verdict = "SAME" if abs(time.mean) < margin else verdict
        claim = f"{verdict} is likely"
    outside = means.low > margin or means.high < -margin
    refuted = {"FASTER": means.low > -margin, "SLOWER": means.high < margin, "SAME": outside}
    if not refuted[verdict]:
        return ""
    return f"by the median step {claim}, but {of_all_steps(_ratio_text(means, margin))}"


def of_all_steps(ratio: str) -> str:
    """Return a clause with what the mean step times say against the medians."""
    return f"the ratio of mean step times is {ratio}: some steps take far longer than the median"


def _about_voids(blocks: Sequence[str]) -> list[str]:
    voids = [void for void in blocks if void]
    if not voids:
        return []
    reason, _ = Counter(voids).most_common(1)[0]
    total = len(blocks)
    return [f"void and not counted: {len(voids)} of {counted(total, 'block')}: {reason}"]


def _ratio_text(time: Interval, margin: float) -> str:
    return interval_text(*time.ratios, math.expm1(margin))


def _ratios(time: Interval) -> list[float | None]:
    return [ratio if math.isfinite(ratio) else None for ratio in time.ratios]


def region_of(comparison: PairedComparison) -> float:
    """Return the ratio from 1 within which the arms count as the same: region or floor."""
    facts = comparison.facts
    return float(max(facts.get("region", REGION), facts.get("floor", 0.0)))
