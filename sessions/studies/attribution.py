"""Which optimization gave what: effects of toggles from arms that ran in interleaved rounds.

A *round* runs every arm once, in random order; an *arm* is the set of toggles that it switches on.
An *effect* is a contrast: a weighted sum, with weights that sum to 0, of the logarithms of the
arms' step times within one round. What a round's blocks share (clock, temperature, drift) cancels,
and the random order gives what is left a random sign, so that the rounds' values behave as the
pairs of ``sessions.verdicts.verdict`` do and get its interval, which holds however often one looks.

* **ladder**: toggles added one after the other; each rung against the one before.
* **leave-one-out**: everything on, against everything on but one.
* **factorial**: every subset of up to five toggles. The *share* of a toggle is its Shapley value:
  its effect averaged over all orders in which the toggles can be added (Shapley, 1953), so that the
  shares of all toggles add up to the total. The *interaction* of two is how much more they do
  together than the product of each, averaged over the settings of the others.
* **shapley**: shares from some random orders, for more toggles than that. The interval is widened
  by what the choice of the orders may have done (t over the orders; half of alpha for each).

A toggle may need another one: then some arms cannot be, and it waits in every order until what it
needs is there. Shares are averaged over those orders and still add up to the total, interactions
over the settings in which both can be switched, and a toggle is left out with what needs it.

Effects are ratios: 0.8 means that 20 % of the step time went away. Peak memory is counted by the
allocator and repeats exactly, so that its ratios have no interval.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from sessions.model import Judgement
from sessions.verdicts import verdict

MODES = ("ladder", "leave-one-out", "factorial", "shapley")
WHOLE_STEP, BACKWARD = TIMED = ("step", "backward")  # what of a step is timed
MOST_FACTORIAL = 5  # toggles: 32 arms
LEAST_ORDERS = 4  # that are sampled, or their scatter would say nothing

Place = TypeVar("Place", bound=Hashable)
Subset = frozenset[int]  # places of the toggles that are on
Table = NDArray  # (rounds, arms): a number of each block, NaN where none counts
Weights = Mapping[int, float]  # by arm


@dataclass(frozen=True)
class Contrast:
    """An effect before it is measured. ``kind``: step, without, share, interaction or total.

    ``orders`` are the contrasts whose mean it is, one for each sampled order; else empty.
    """

    kind: str
    name: str
    weights: Weights
    orders: tuple[Weights, ...] = ()
    reason: str = ""  # why it cannot be measured, if so


@dataclass(frozen=True)
class Effect:
    """The result of a contrast. ``judgement`` is None if it could not be measured."""

    contrast: Contrast
    judgement: Judgement | None
    reason: str = ""


def in_turn(order: Sequence[Place], can_be: Callable[[frozenset[Place]], bool]) -> list[Place]:
    """Return the order with each toggle put off until it can be added to those before it.

    Those that never can are left out.
    """
    there: list[Place] = []
    waiting = list(order)
    while waiting:
        added = next((toggle for toggle in waiting if can_be(frozenset([*there, toggle]))), None)
        if added is None:
            break
        there.append(added)
        waiting.remove(added)
    return there


def _any(_: Subset) -> bool:
    return True


def subsets(
    mode: str,
    count: int,
    orders: Sequence[Sequence[int]] = (),
    can_be: Callable[[Subset], bool] = _any,
) -> list[Subset]:
    """Return the arms that a mode needs of so many toggles, nothing switched on first.

    ``can_be`` says if these toggles can be on together; a ladder has its other rungs all the same.
    Raises ``ValueError`` for an unknown mode, no toggle, or too many for a factorial.
    """
    if mode not in MODES:
        raise ValueError(f"mode: unknown {mode!r}; expected one of {MODES}")
    if count < 1:
        raise ValueError("at least one toggle must be named that can be switched")
    everything = frozenset(range(count))
    match mode:
        case "ladder":
            arms = [frozenset(range(rung)) for rung in range(count + 1)]
        case "leave-one-out":
            remaining = (
                in_turn(sorted(everything - {left_out}), can_be) for left_out in range(count)
            )
            arms = [frozenset(), everything, *map(frozenset, remaining)]
        case "factorial":
            if count > MOST_FACTORIAL:
                raise ValueError(
                    f"factorial: {count} toggles make {2**count} arms; at most {MOST_FACTORIAL} "
                    "toggles, or mode shapley"
                )
            arms = [
                frozenset(chosen)
                for size in range(count + 1)
                for chosen in itertools.combinations(range(count), size)
                if can_be(frozenset(chosen))
            ]
        case _:
            arms = [frozenset(order[:rung]) for order in orders for rung in range(count + 1)]
            arms.sort(key=lambda subset: (len(subset), sorted(subset)))
    return list(dict.fromkeys(arms))


def sampled_orders(
    count: int, orders: int, seed: int, can_be: Callable[[Subset], bool] = _any
) -> list[tuple[int, ...]]:
    """Return random orders of so many toggles without repetition; all if there are no more.

    Where not all toggles ``can_be`` on together, each waits for what it needs.
    """
    wanted = min(max(orders, LEAST_ORDERS), math.factorial(count))
    if wanted == math.factorial(count):
        return _feasible(itertools.permutations(range(count)), can_be)
    draw = random.Random(seed)
    orders_drawn: dict[tuple[int, ...], None] = {}
    while len(orders_drawn) < wanted:
        orders_drawn[tuple(draw.sample(range(count), count))] = None
    return _feasible(orders_drawn, can_be)


def _feasible(
    orders: Iterable[tuple[int, ...]], can_be: Callable[[Subset], bool]
) -> list[tuple[int, ...]]:
    """Return the feasible forms of the orders, without those that stop short of everything."""
    delayed = ((order, tuple(in_turn(order, can_be))) for order in orders)
    return [turned for order, turned in delayed if len(turned) == len(order)]


def contrasts(
    mode: str,
    names: Sequence[str],
    arms: Sequence[Subset],
    missing: Mapping[int, str],
    orders: Sequence[Sequence[int]] = (),
) -> list[Contrast]:
    """Return the effects of a mode.

    ``missing``: reasons of arms that could not be measured.

    A rung whose arm is missing counts with the next one that is there.
    """
    arm_of = {subset: number for number, subset in enumerate(arms)}
    everything = frozenset(range(len(names)))
    total = Contrast("total", "all together", _difference(arm_of, everything, frozenset()))
    if mode == "ladder":
        made = [*_rungs(names, missing), total]
    elif mode == "leave-one-out":
        made = [*(_without(names, arm_of, toggle) for toggle in range(len(names))), total]
    elif mode == "factorial":
        every = _feasible(itertools.permutations(range(len(names))), arm_of.__contains__)
        made = [*_shares(names, arm_of, every), *_interactions(names, arm_of), total]
    else:
        sampled = len(orders) < math.factorial(len(names))
        made = [*_shares(names, arm_of, orders, sampled), total]
    return [_with_reason(contrast, missing) for contrast in made]


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
    """Blocks as a table (rounds, arms) in the order of rounds; NaN where no block counts."""
    numbers, places = np.asarray(number, int), np.asarray(arm, int)
    rounds_run, rows = np.unique(numbers, return_inverse=True)
    table = np.full((len(rounds_run), arms), np.nan)
    counts = np.array([not void for void in voids], bool)
    table[rows[counts], places[counts]] = np.asarray(value, np.float64)[counts]
    return table


def measure(
    wanted: Sequence[Contrast],
    medians_ms: Table,
    clocks_mhz: Table,
    means_ms: Table | None = None,
    *,
    region: float = verdict.REGION,
    floor: float = 0.0,
    half_width: float = verdict.HALF_WIDTH,
    seconds: float = math.nan,
) -> list[Effect]:
    """Return the effects on step time of rounds of block medians (rounds, arms).

    The SM clocks, and the blocks' means if known, have the same shape.

    FASTER and SLOWER are corrected for their number (Holm); the intervals are each 95 %.
    ``seconds`` is how long the rounds took, from which follows how much longer would decide.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(medians_ms)
        means = np.full_like(logs, np.nan) if means_ms is None else np.log(means_ms)
        cycles = logs + np.log(clocks_mhz)
    judgements = [
        None
        if contrast.reason
        else _judge(contrast, logs, cycles, means, region, floor, half_width, seconds)
        for contrast in wanted
    ]
    judged = iter(
        verdict.corrected([judgement for judgement in judgements if judgement is not None])
    )
    return [
        Effect(contrast, None if contrast.reason else next(judged), contrast.reason)
        for contrast in wanted
    ]


def memory(wanted: Sequence[Contrast], peak_bytes: ArrayLike) -> list[float]:
    """Return the same effects on peak memory, as ratios: bytes (arms); NaN if unknown."""
    logs = np.log(np.asarray(peak_bytes, np.float64))
    return [
        math.nan if contrast.reason else float(np.exp(values(contrast.weights, logs)))
        for contrast in wanted
    ]


def typical_ms(medians_ms: Table) -> list[float]:
    """Return the median of each arm's block medians; NaN if there are none."""
    there = [column[np.isfinite(column)] for column in medians_ms.T]
    return [float(np.median(column)) if len(column) else math.nan for column in there]


def against_first(medians_ms: Table) -> list[verdict.Interval]:
    """Each arm's log ratio to the first, paired within rounds."""
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
    region: float,
    floor: float,
    half_width: float,
    seconds: float,
) -> Judgement:
    own = values(contrast.weights, logs)
    there = np.isfinite(own)
    cycles_and_means = (values(contrast.weights, table)[there] for table in (cycles, means))
    alpha = verdict.ALPHA / 2 if contrast.orders else verdict.ALPHA
    judgement = verdict.judge_pairs(
        verdict.Pairs(np.flatnonzero(there), own[there], *cycles_and_means),
        region=region,
        floor=floor,
        half_width=half_width,
        seconds=seconds,
        alpha=alpha,
    )
    # What is a pair there is a round here.
    judgement = msgspec.structs.replace(
        judgement,
        reasons=[reason.replace(" pairs were", " rounds were") for reason in judgement.reasons],
    )
    if len(contrast.orders) < 2 or judgement.low is None:
        return judgement
    return _widened(contrast, logs, judgement, math.log1p(max(region, floor)))


def _widened(contrast: Contrast, logs: NDArray, judgement: Judgement, margin: float) -> Judgement:
    """Return the judgement with the interval of the orders added, by Bonferroni's inequality.

    ``settled`` stays that of the rounds: what the orders add does not shrink with more of them.
    """
    from scipy import stats  # slow to load, and the window imports this package

    marginals = [np.nanmean(values(order, logs)) for order in contrast.orders]
    count = len(marginals)
    error = float(np.std(marginals, ddof=1)) / math.sqrt(count)
    reach = float(stats.t.ppf(1 - verdict.ALPHA / 4, count - 1)) * error
    assert judgement.ratio is not None and judgement.low is not None and judgement.high is not None
    mean, low, high = (math.log(end) for end in (judgement.ratio, judgement.low, judgement.high))
    wide = verdict.Interval(judgement.pairs, mean, low - reach, high + reach, error)
    said, reasons = verdict.decide(wide, margin)
    if judgement.verdict == "UNDECIDED":
        said, reasons = "UNDECIDED", []  # as it was told: too few, or the clocks or means disagree
    distance = max(0.0, (abs(mean) - margin) / 2)
    p_orders = 2 * float(stats.t.sf(distance / error, count - 1)) if error else 0.0
    own = values(contrast.weights, logs)
    p_rounds = verdict.p_value(verdict.interval(own[np.isfinite(own)]), margin + distance)
    reasons.append(f"{count} sampled orders of the toggles widen it by {100 * reach:.2g} %")
    return msgspec.structs.replace(
        judgement,
        verdict=said,
        low=math.exp(wide.low),
        high=math.exp(wide.high),
        p=min(1.0, p_orders + p_rounds),
        more_s=None,  # what the orders leave open, more rounds of them leave open too
        reasons=[*judgement.reasons, *reasons],
    )


def _difference(arm_of: Mapping[Subset, int], other: Subset, base: Subset) -> Weights:
    return {arm_of[other]: 1.0, arm_of[base]: -1.0}


def _rungs(names: Sequence[str], missing: Mapping[int, str]) -> list[Contrast]:
    made = []
    before, pending = 0, []
    for rung, name in enumerate(names, start=1):
        pending.append(name)
        if rung in missing:
            made.append(Contrast("step", name, {}, reason=missing[rung]))
            continue
        made.append(Contrast("step", " + ".join(pending), {rung: 1.0, before: -1.0}))
        before, pending = rung, []
    return made


def _without(names: Sequence[str], arm_of: Mapping[Subset, int], own: int) -> Contrast:
    """Everything against the most that can be without a toggle: what needs it goes with it."""
    everything = frozenset(range(len(names)))
    largest = max((subset for subset in arm_of if own not in subset), key=len)
    left_out = [own, *sorted(everything - largest - {own})]
    weights = _difference(arm_of, everything, largest)
    return Contrast("without", " + ".join(names[toggle] for toggle in left_out), weights)


def _shares(
    names: Sequence[str],
    arm_of: Mapping[Subset, int],
    orders: Sequence[Sequence[int]],
    sampled: bool = False,
) -> list[Contrast]:
    """Each toggle's effect where its turn comes, averaged over the orders."""
    if not orders:
        reason = "the toggles cannot be added one after the other"
        return [Contrast("share", name, {}, reason=reason) for name in names]
    made = []
    for own, name in enumerate(names):
        parts = []
        for order in orders:
            before = frozenset(order[: list(order).index(own)])
            parts.append(_difference(arm_of, before | {own}, before))
        weights: dict[int, float] = {}
        for part in parts:
            for arm, weight in part.items():
                weights[arm] = weights.get(arm, 0.0) + weight / len(orders)
        made.append(Contrast("share", name, weights, tuple(parts) if sampled else ()))
    return made


def _interactions(names: Sequence[str], arm_of: Mapping[Subset, int]) -> list[Contrast]:
    """Return how much more two toggles do together, averaged over settings with all four arms."""
    made = []
    for first, second in itertools.combinations(range(len(names)), 2):
        name = f"{names[first]} x {names[second]}"
        squares = (_square(rest, first, second) for rest in arm_of if not rest & {first, second})
        fours = [four for four in squares if all(arm in arm_of for arm in four)]
        if not fours:
            reason = f"{names[first]} and {names[second]} cannot each be switched without the other"
            made.append(Contrast("interaction", name, {}, reason=reason))
            continue
        weights = {
            arm_of[arm]: sign / len(fours)
            for four in fours
            for arm, sign in zip(four, (1, -1, -1, 1), strict=True)
        }
        made.append(Contrast("interaction", name, weights))
    return made


def _square(rest: Subset, first: int, second: int) -> tuple[Subset, ...]:
    return rest, rest | {first}, rest | {second}, rest | {first, second}


def _with_reason(contrast: Contrast, missing: Mapping[int, str]) -> Contrast:
    if contrast.reason:
        return contrast
    used = [arm for arm, weight in contrast.weights.items() if weight]
    reasons = [missing[arm] for arm in used if arm in missing]
    if not reasons:
        return contrast
    return Contrast(contrast.kind, contrast.name, contrast.weights, contrast.orders, reasons[0])
