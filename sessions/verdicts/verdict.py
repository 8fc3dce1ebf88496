"""The verdict of a paired comparison: FASTER, SLOWER, SAME or UNDECIDED, with its interval.

The unit is a *pair*: one block of steps of each arm, run one after the other, and the log ratio of
their median step times. Steps are correlated and clocks drift, but what two neighbouring blocks
share cancels, and where the order within each pair is random what is left has a random sign, so
that the log ratios behave as independent ones whatever the steps do. A median does not see what a
few steps of each block cost: a verdict that the blocks' mean step times refute, by an interval of
their own, becomes UNDECIDED.

**Looking often costs nothing here.** A person watches the interval and may stop, or measure on, at
any block, which makes an ordinary 95 % interval miss far more often than 5 %. The interval is
therefore valid at all times at once: it holds the log ratios for which the test martingale of
``sessions.verdicts.martingale`` is below 1 / alpha. The price is an interval about 1.6 times as
wide as one for a number of pairs that was fixed beforehand. For skewed log ratios the BCa bootstrap
(Efron, JASA 82, 1987), stretched by the same factor, takes part: the interval reaches on each side
as far as either of the two does.

**Two builds of one configuration differ** for as long as they live, because they lie at other
addresses. On an H100, of 40 comparisons of identical captured steps, the pairs alone put 38
intervals beside 1, at a ratio of 1.0014. Where both arms were rebuilt several times, the mean log
ratio of each *build* is a unit of a second martingale, and the interval reaches as far as either of
the two does: the pairs' if builds do not differ, the builds' if they do. Pairs of one build share
its offset, so that the first alone would be too narrow. Each is valid at every look, and so is what
holds both. Where nothing was rebuilt the interval describes the two builds that ran.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from sessions.model import Judgement, PairedComparison
from sessions.numbers import interval_text
from sessions.verdicts import martingale
from sessions.verdicts.builds import LEAST_BUILDS as LEAST_BUILDS
from sessions.verdicts.builds import Builds, scatter
from sessions.verdicts.martingale import ALPHA as ALPHA
from sessions.verdicts.martingale import critical as critical
from sessions.verdicts.martingale import paths as paths

MIN_PAIRS = 8
REGION = 0.01  # of practical equivalence: ratios from 1 / 1.01 to 1.01 are the same
HALF_WIDTH = 0.005  # of the interval of the log ratio, at which measuring ends
_RESAMPLES = 1999
_DRAWN = 1 << 20  # numbers of resamples that are held at once
_EACH = 40  # pairs that are all looked at
LONGEST_S = 86_400.0  # no verdict is promised beyond a day more


@dataclass(frozen=True)
class Pairs:
    """The finished pairs of a comparison, in the order in which they ran.

    ``logs`` are the log ratios of step time, second arm over first, ``cycle_logs`` those of clock
    cycles (NaN where a block's clock is not known), ``mean_logs`` those of the blocks' mean step
    times (likewise; empty where none is); ``numbers`` are the pairs' own, ``builds`` the number of
    the build that each ran in (empty: all in one).
    """

    numbers: NDArray
    logs: NDArray
    cycle_logs: NDArray
    mean_logs: NDArray = field(default_factory=lambda: np.empty(0))
    builds: NDArray = field(default_factory=lambda: np.empty(0, int))

    def builds_of(self, chosen: NDArray) -> NDArray:
        """The builds of the ``chosen`` pairs."""
        return self.builds[chosen] if len(self.builds) else np.zeros(int(chosen.sum()), int)


@dataclass(frozen=True)
class Interval:
    """Mean of log ratios and the interval that holds it; NaN where there are too few pairs."""

    n: int
    mean: float
    low: float
    high: float
    deviation: float  # standard deviation of one pair
    builds: Builds | None = None  # where there are several, of several pairs each

    @property
    def half_width(self) -> float:
        """The longer of the two sides."""
        return max(self.high - self.mean, self.mean - self.low)


def load() -> None:
    """Import what judging needs, which takes seconds once: not to be spent among timed blocks."""
    import scipy.stats  # noqa: F401


def pairs(comparison: PairedComparison) -> Pairs:
    """Pair the blocks of the first two arms, void ones left out.

    Where the comparison does not say which pair a block belongs to, neighbours make one.
    """
    count = len(comparison.order)
    numbers = comparison.pairs or [place // 2 for place in range(count)]
    clocks = comparison.clocks_mhz or [math.nan] * count
    voids = comparison.voids or [""] * count
    means = comparison.means_ms or [math.nan] * count
    builds = comparison.builds or [0] * count
    blocks: dict[int, dict[int, tuple[float, float, float]]] = {}
    for arm, number, median, clock, mean, void in zip(
        comparison.order, numbers, comparison.medians_ms, clocks, means, voids, strict=True
    ):
        if not void and median > 0 and math.isfinite(median):
            blocks.setdefault(number, {})[arm] = (median, clock, mean)
    complete = {number: arms for number, arms in blocks.items() if arms.keys() >= {0, 1}}
    both = np.array([[arms[0], arms[1]] for arms in complete.values()]).reshape(-1, 2, 3)
    both[~(both > 0)] = math.nan  # a clock or a mean that was not measured
    logs, clock_logs, mean_logs = np.log(both[:, 1] / both[:, 0]).T
    build_of = dict(zip(numbers, builds, strict=True))
    return Pairs(
        np.array(list(complete), int),
        logs,
        logs + clock_logs,
        mean_logs,
        np.array([build_of[number] for number in complete], int),
    )


def interval(
    logs: ArrayLike, alpha: float = ALPHA, builds: NDArray | None = None, least: int = 1
) -> Interval:
    """Return the interval of the mean log ratio that holds at all times at once.

    t and BCa together. ``builds``: the number of the build of each log ratio; their scatter takes
    part where there are several. There is no interval before there are ``least`` builds.
    """
    series = np.asarray(logs, np.float64)
    pairs_only = _interval(series, alpha)
    if builds is None:
        return pairs_only
    between = scatter(series, builds)
    if between is None or (between.n == 1 and least == 1):
        return pairs_only
    low = high = math.nan
    if between.n >= least:
        half = between.half_width(alpha)
        wide = math.isfinite(half)  # two builds of a comparison that did not plan for several
        low = min(pairs_only.low, between.mean - half) if wide else pairs_only.low
        high = max(pairs_only.high, between.mean + half) if wide else pairs_only.high
    return dataclasses.replace(pairs_only, low=low, high=high, builds=between)


def _interval(series: NDArray, alpha: float) -> Interval:
    n = len(series)
    if n < 2:
        mean = float(series[0]) if n else math.nan
        return Interval(n, mean, math.nan, math.nan, math.nan)
    mean, deviation = float(series.mean()), float(series.std(ddof=1))
    error = deviation / math.sqrt(n)
    half = float(critical(n, alpha)) * error
    if not math.isfinite(half):
        return Interval(n, mean, math.nan, math.nan, deviation)
    low, high = mean - half, mean + half
    if n >= MIN_PAIRS and deviation > 0:
        below, above, fixed = _fixed(series, alpha)
        low = min(low, mean - (mean - below) * half / fixed)
        high = max(high, mean + (above - mean) * half / fixed)
    return Interval(n, mean, low, high, deviation)


def fixed_interval(logs: ArrayLike, alpha: float = ALPHA) -> Interval:
    """The interval for a number of pairs that was fixed before the first look.

    The wider of t and BCa on each side; of use where nobody looked in between.
    """
    series = np.asarray(logs, np.float64)
    n = len(series)
    mean, deviation = float(series.mean()), float(series.std(ddof=1)) if n > 1 else 0.0
    if n < MIN_PAIRS or not deviation > 0:
        return interval(series, alpha)
    below, above, half = _fixed(series, alpha)
    return Interval(n, mean, min(below, mean - half), max(above, mean + half), deviation)


def p_value(time: Interval, margin: float) -> float:
    """Return the p value of "the log ratio lies within ``+-margin``", valid under any stopping.

    Where builds scatter, the larger of the pairs' and the builds', as the interval holds both.
    """
    p = martingale.p_value(time.n, abs(time.mean) - margin, time.deviation)
    between = time.builds
    if between is None or not math.isfinite(between.half_width()):
        return p
    distance = math.copysign(between.mean, between.mean * time.mean) - margin
    return max(p, martingale.p_value(between.n, distance, between.deviation, martingale.BUILDS))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p values, in the order given (Scand. J. Statistics 6, 1979)."""
    adjusted = [1.0] * len(p_values)
    highest = 0.0
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
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
    """What the blocks so far show of the second arm against the first.

    ``region``: the ratio from 1 within which arms are the same in practice. ``floor``: what this
    machine showed between identical arms; nothing below it is claimed, so that the larger of the
    two counts. ``seconds`` is how long the pairs took, for the time that deciding would take.
    ``least_builds``: how many builds of both arms there must be before anything is claimed.
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
    found: Pairs,
    voids: Sequence[str] = (),
    *,
    region: float = REGION,
    floor: float = 0.0,
    half_width: float = HALF_WIDTH,
    seconds: float = math.nan,
    alpha: float = ALPHA,
    least_builds: int = 1,
) -> Judgement:
    """As ``judge``, of pairs already made; ``voids`` says of each block why it does not count."""
    every = np.ones(len(found.logs), bool)
    time = interval(found.logs, alpha, found.builds_of(every), least_builds)
    builds = max(1, len(set(found.builds.tolist()))) if time.builds is None else time.builds.n
    margin = math.log1p(max(region, floor))
    verdict, reasons = decide(time, margin)
    more_s = None
    if verdict == "UNDECIDED":
        more_s = seconds_to_tell(time, math.copysign(margin, time.mean), seconds)
        if time.n >= MIN_PAIRS and builds < least_builds:
            reasons = [f"{builds} of at least {least_builds} builds were measured"]
            if more_s is not None:
                more_s = max(more_s, (least_builds - builds) * seconds / builds)
    timed = np.isfinite(found.mean_logs)
    whole = None
    if timed.sum() >= MIN_PAIRS:
        whole = interval(found.mean_logs[timed], alpha, found.builds_of(timed), least_builds)
    if whole is not None and (refuted := _refuted(verdict, time, whole, margin)):
        reasons.append(refuted)
        verdict, more_s = "UNDECIDED", None  # more of the same would only confirm it
    known = np.isfinite(found.cycle_logs)
    cycles = None
    if known.any():
        cycles = interval(found.cycle_logs[known], alpha, found.builds_of(known), least_builds)
    count = f"the clock was known for {known.sum()} of {known.size} pairs"
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
            if cycles.mean * time.mean > 0:  # else more of the same would only confirm it
                more_s = seconds_to_tell(cycles, 0.0, seconds)
    elif verdict in ("FASTER", "SLOWER"):
        few = f"{count}, not for {MIN_PAIRS}" if known.any() else "the clock is not known here"
        reasons.append(f"{few}: not confirmed in clock cycles")
    if floor > region:
        reasons.append(
            f"identical arms differ by up to {100 * floor:.2g} % on this machine, "
            "so nothing smaller is claimed"
        )
    reasons += _about_voids(voids)
    return Judgement(
        verdict=verdict,
        pairs=time.n,
        ratio=_exp(time.mean),
        low=_exp(time.low),
        high=_exp(time.high),
        cycles=_ratios(cycles),
        whole=_ratios(whole),
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
    """The judgements of several comparisons read side by side, by Holm's correction.

    A FASTER or SLOWER whose adjusted p value is above ``alpha`` becomes UNDECIDED and says so.
    """
    adjusted = holm([one.p for one in judgements])
    found = []
    for one, p in zip(judgements, adjusted, strict=True):
        if one.verdict in ("FASTER", "SLOWER") and p > alpha:
            reason = (
                f"{one.verdict} by itself, but among {len(judgements)} comparisons (Holm) "
                f"its p value is {p:.2g}"
            )
            one = msgspec.structs.replace(one, verdict="UNDECIDED", reasons=[reason, *one.reasons])
        found.append(msgspec.structs.replace(one, p=p))
    return found


def seconds_to_tell(found: Interval, edge: float, seconds: float) -> float | None:
    """How long to measure on until the interval can be expected to leave out ``edge``, a log ratio.

    ``seconds`` is how long the pairs so far took. Below ``MIN_PAIRS`` nobody knows the scatter: it
    is the time until there are so many. None where it is not known, or more than ``LONGEST_S``.
    """
    if not found.n or not seconds > 0:
        return None
    each_s = seconds / found.n
    if found.n < MIN_PAIRS:
        return each_s * (MIN_PAIRS - found.n)
    if not found.deviation > 0:
        return None
    distance = abs(found.mean - edge)
    n = found.n + 1
    plain = float(critical(found.n)) * found.deviation / math.sqrt(found.n)
    stretch = found.half_width / plain if found.half_width > 0 and math.isfinite(plain) else 1.0
    while stretch * float(critical(n)) * found.deviation / math.sqrt(n) > distance:
        n += max(1, n // 16)
        if (n - found.n) * each_s > LONGEST_S:
            return None
    return (n - found.n) * each_s


def is_look(n: int) -> bool:
    """Whether to judge after pair ``n``: all of the first 40, then 5 % more, which costs less."""
    if n <= _EACH:
        return True
    look, before = (math.floor(math.log(pairs / _EACH, 1.05)) for pairs in (n, n - 1))
    return look > before


def reading(time: Interval, margin: float) -> str:
    """Return the verdict by where the interval of a log ratio lies against ``+-margin``."""
    if time.high < -margin:
        return "FASTER"
    if time.low > margin:
        return "SLOWER"
    return "SAME" if -margin <= time.low and time.high <= margin else "UNDECIDED"


def decide(time: Interval, margin: float) -> tuple[str, list[str]]:
    """Return the verdict of enough pairs by their interval, and why it is no clear one."""
    if time.n < MIN_PAIRS:
        return "UNDECIDED", [f"{time.n} of at least {MIN_PAIRS} pairs were measured"]
    verdict = reading(time, margin)
    percent = 100 * math.expm1(margin)
    undecided = [f"the interval reaches over the edge of ±{percent:.2g} %"]
    return verdict, undecided if verdict == "UNDECIDED" else []


def _refuted(verdict: str, time: Interval, whole: Interval, margin: float) -> str:
    """How the mean step times, whose log ratios are ``whole``, refute a verdict by medians.

    Or the one that more pairs can be expected to give, where there is none yet.
    """
    said = f"it is {verdict}"
    if verdict == "UNDECIDED":
        if time.n < MIN_PAIRS:
            return ""
        verdict = "FASTER" if time.mean < 0 else "SLOWER"
        verdict = "SAME" if abs(time.mean) < margin else verdict
        said = f"{verdict} is likely"
    outside = whole.low > margin or whole.high < -margin
    refuted = {"FASTER": whole.low > -margin, "SLOWER": whole.high < margin, "SAME": outside}
    if not refuted[verdict]:
        return ""
    return f"by the median step {said}, but {of_all_steps(_ratio_text(whole, margin))}"


def of_all_steps(ratio: str) -> str:
    """What the mean step times say against the medians: a clause."""
    return f"of all steps together the ratio is {ratio}: some take far longer than the median"


def _fixed(series: NDArray, alpha: float) -> tuple[float, float, float]:
    """Ends of the BCa interval of the mean, and half the width of the t interval."""
    from scipy import stats  # slow to load, and the window imports this module for its numbers

    n = len(series)
    half = float(stats.t.ppf(1 - alpha / 2, n - 1) * series.std(ddof=1)) / math.sqrt(n)
    # As scipy.stats.bootstrap has it, whose jackknife holds n x n numbers: hours of pairs do not
    # fit in memory. That of a mean needs none.
    mean = float(series.mean())
    apart = series - mean
    draw = np.random.default_rng(0)
    rows = max(1, _DRAWN // n)
    means = np.concatenate(
        [
            apart[draw.integers(0, n, (min(rows, _RESAMPLES - first), n))].mean(axis=1)
            for first in range(0, _RESAMPLES, rows)
        ]
    )
    standard = apart / apart.std()  # first, for the squares of small numbers may be 0
    skewness = float(np.sum(standard**3) / n**1.5) / 6
    tie = 1e-9 * np.ptp(apart)  # of a resample with the mean, whichever way its sum is rounded
    bias = stats.norm.ppf((np.mean(means < -tie) + np.mean(means <= tie)) / 2)
    reach = bias + stats.norm.ppf([alpha / 2, 1 - alpha / 2])
    below, above = np.quantile(means, stats.norm.cdf(bias + reach / (1 - skewness * reach)))
    return mean + float(below), mean + float(above), half


def _about_voids(blocks: Sequence[str]) -> list[str]:
    voids = [void for void in blocks if void]
    if not voids:
        return []
    reason, _ = Counter(voids).most_common(1)[0]
    total = len(blocks)
    share = f"all {total}" if len(voids) == total else f"{len(voids)} of {total}"
    return [f"{share} blocks were void and not counted: {reason}"]


def _ratio_text(found: Interval, margin: float) -> str:
    ratio, low, high = (math.exp(end) for end in (found.mean, found.low, found.high))
    return interval_text(ratio, low, high, math.expm1(margin))


def _ratios(found: Interval | None) -> list[float | None] | None:
    return None if found is None else [_exp(found.mean), _exp(found.low), _exp(found.high)]


def _exp(value: float) -> float | None:
    return math.exp(value) if math.isfinite(value) else None


def region_of(comparison: PairedComparison) -> float:
    """Return the ratio from 1 within which the arms count as the same: region or floor."""
    facts = comparison.facts
    return float(max(facts.get("region", REGION), facts.get("floor", 0.0)))


def wrong_arms(comparison: PairedComparison) -> list[tuple[str, str]]:
    """The arms whose numbers are out of tolerance, and how far: red, however fast."""
    return _arms_found(comparison, False)


def unchecked_arms(comparison: PairedComparison) -> list[tuple[str, str]]:
    """The arms whose numbers could not be checked, and why: nobody knows whether they are right."""
    return _arms_found(comparison, None)


def are_right(found: Mapping[str, Any]) -> bool | None:
    """Whether an arm's numbers, as facts keep them, are right; None where nobody knows."""
    # Files of before told of what was not checked by the lack of a reference alone.
    return None if found["ok"] and not found["reference"] else found["ok"]


def _arms_found(comparison: PairedComparison, right: bool | None) -> list[tuple[str, str]]:
    return [
        ("AB"[int(arm)], found["text"])
        for arm, found in sorted(comparison.facts.get("numerics", {}).items())
        if are_right(found) is right
    ]
