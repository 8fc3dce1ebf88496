"""The arms and contrasts of an attribution: ladder, leave one out, factorial, Shapley values."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

MODES = ("ladder", "leave-one-out", "factorial", "shapley")
MOST_FACTORIAL = 5  # toggles: 32 arms
LEAST_ORDERS = 4  # fewest sampled orders that show a scatter
Place = TypeVar("Place", bound=Hashable)
Subset = frozenset[int]  # places of the toggles that are on
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

    def __post_init__(self) -> None:
        if abs(sum(self.weights.values())) > 1e-9:
            raise ValueError(f"{self.kind} {self.name}: compares nothing, weights {self.weights}")


def in_turn(order: Sequence[Place], can_be: Callable[[frozenset[Place]], bool]) -> list[Place]:
    """Return the order with each toggle put off until it can be added to those before it.

    Those that never can are left out.
    """
    added_toggles: list[Place] = []
    waiting = list(order)
    while waiting:
        added = next(
            (toggle for toggle in waiting if can_be(frozenset([*added_toggles, toggle]))), None
        )
        if added is None:
            break
        added_toggles.append(added)
        waiting.remove(added)
    return added_toggles


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
        raise ValueError(f"mode: unknown {mode!r}; expected one of {', '.join(MODES)}")
    if count < 1:
        raise ValueError("name at least one toggle that can be switched")
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
                    f"factorial: {count} toggles make {2**count} arms; use at most "
                    f"{MOST_FACTORIAL} toggles, or mode shapley"
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

    If not all toggles ``can_be`` on together, a toggle comes after those that it needs.
    """
    n_orders = min(max(orders, LEAST_ORDERS), math.factorial(count))
    if n_orders == math.factorial(count):
        return _feasible(itertools.permutations(range(count)), can_be)
    draw = random.Random(seed)
    orders_drawn: dict[tuple[int, ...], None] = {}
    while len(orders_drawn) < n_orders:
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
        all_contrasts = [*_rungs(names, missing), total]
    elif mode == "leave-one-out":
        all_contrasts = [*(_without(names, arm_of, toggle) for toggle in range(len(names))), total]
    elif mode == "factorial":
        every = _feasible(itertools.permutations(range(len(names))), arm_of.__contains__)
        all_contrasts = [*_shares(names, arm_of, every), *_interactions(names, arm_of), total]
    else:
        sampled = len(orders) < math.factorial(len(names))
        all_contrasts = [*_shares(names, arm_of, orders, sampled), total]
    return [_with_reason(contrast, missing) for contrast in all_contrasts]


def _difference(arm_of: Mapping[Subset, int], other: Subset, base: Subset) -> Weights:
    return {arm_of[other]: 1.0, arm_of[base]: -1.0}


def _rungs(names: Sequence[str], missing: Mapping[int, str]) -> list[Contrast]:
    steps = []
    before, pending = 0, []
    for rung, name in enumerate(names, start=1):
        pending.append(name)
        if rung in missing:
            steps.append(Contrast("step", name, {}, reason=missing[rung]))
            continue
        steps.append(Contrast("step", " + ".join(pending), {rung: 1.0, before: -1.0}))
        before, pending = rung, []
    return steps


def _without(names: Sequence[str], arm_of: Mapping[Subset, int], removed: int) -> Contrast:
    """Compare everything with the largest set without a toggle and the toggles that need it."""
    everything = frozenset(range(len(names)))
    largest = max((subset for subset in arm_of if removed not in subset), key=len)
    left_out = [removed, *sorted(everything - largest - {removed})]
    weights = _difference(arm_of, everything, largest)
    return Contrast("without", " + ".join(names[toggle] for toggle in left_out), weights)


def _shares(
    names: Sequence[str],
    arm_of: Mapping[Subset, int],
    orders: Sequence[Sequence[int]],
    sampled: bool = False,
) -> list[Contrast]:
    """Compute each toggle's effect where its turn comes, averaged over the orders."""
    if not orders:
        reason = "the toggles cannot be added one after the other"
        return [Contrast("share", name, {}, reason=reason) for name in names]
    shares = []
    for index, name in enumerate(names):
        parts = []
        for order in orders:
            before = frozenset(order[: list(order).index(index)])
            parts.append(_difference(arm_of, before | {index}, before))
        weights: dict[int, float] = {}
        for part in parts:
            for arm, weight in part.items():
                weights[arm] = weights.get(arm, 0.0) + weight / len(orders)
        shares.append(Contrast("share", name, weights, tuple(parts) if sampled else ()))
    return shares


def _interactions(names: Sequence[str], arm_of: Mapping[Subset, int]) -> list[Contrast]:
    """Return how much more two toggles do together, averaged over settings with all four arms."""
    interactions = []
    for first, second in itertools.combinations(range(len(names)), 2):
        name = f"{names[first]} x {names[second]}"
        squares = (
            _square(subset, first, second) for subset in arm_of if not subset & {first, second}
        )
        fours = [four for four in squares if all(arm in arm_of for arm in four)]
        if not fours:
            reason = f"{names[first]} and {names[second]} cannot be switched separately"
            interactions.append(Contrast("interaction", name, {}, reason=reason))
            continue
        weights = {
            arm_of[arm]: sign / len(fours)
            for four in fours
            for arm, sign in zip(four, (1, -1, -1, 1), strict=True)
        }
        interactions.append(Contrast("interaction", name, weights))
    return interactions


def _square(subset: Subset, first: int, second: int) -> tuple[Subset, ...]:
    return subset, subset | {first}, subset | {second}, subset | {first, second}


def _with_reason(contrast: Contrast, missing: Mapping[int, str]) -> Contrast:
    if contrast.reason:
        return contrast
    used = [arm for arm, weight in contrast.weights.items() if weight]
    reasons = [missing[arm] for arm in used if arm in missing]
    if not reasons:
        return contrast
    return Contrast(contrast.kind, contrast.name, contrast.weights, contrast.orders, reasons[0])
