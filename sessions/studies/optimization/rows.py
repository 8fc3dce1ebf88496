"""The rows of an optimization's tables, as they are sent: candidates, options, verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sessions.columns import TableColumns
from sessions.model import Scalar
from sessions.studies.attribution import estimation
from sessions.studies.attribution.rows import effect_rows
from sessions.studies.optimization.search import Search
from sessions.studies.optimization.space import (
    BLOCKED,
    NOT_TRIED,
    RACED,
    Candidate,
    Race,
    replaced,
)
from sessions.studies.optimization.verdicts import Verdicts

START, BEST, RUNNER_UP, FRONT = "start", "best", "runner-up", "front"
TRIED, IN_RESULT = "tried", "in the result"


def candidate_rows(search: Search, verdicts: Verdicts) -> TableColumns:
    """Return one row for each candidate; ratios are of step time, to the candidate ``against``."""
    candidates = search.candidates
    races = [candidate.race(candidate.against) for candidate in candidates]
    front = verdicts.front()
    return {
        "candidate": [candidate.number for candidate in candidates],
        "title": [candidate.title for candidate in candidates],
        "role": [_role(candidate, search, verdicts) for candidate in candidates],
        "state": [candidate.state for candidate in candidates],
        "reason": [_reason(candidate, search) for candidate in candidates],
        "front": [float(candidate in front) for candidate in candidates],
        "predicted": [_exp(candidate.predicted) for candidate in candidates],
        "estimate": [_exp(candidate.time) for candidate in candidates],
        "against": [float(c.against) if c.against >= 0 else math.nan for c in candidates],
        "rounds": [race.n for race in races],
        "ratio": [_exp(race.mean) for race in races],
        "low": [_exp(_end(race, -1)) for race in races],
        "high": [_exp(_end(race, 1)) for race in races],
        "step_ms": [search.start.step_ms * _exp(candidate.time) for candidate in candidates],
        "peak_bytes": [candidate.peak_bytes for candidate in candidates],
        "joules": [candidate.joules for candidate in candidates],
        "build_s": [candidate.build_s for candidate in candidates],
        "wrong": [_wrong(candidate) for candidate in candidates],
        "max_error": [candidate.max_error for candidate in candidates],
        "numerics": ["" if c.numerics is None else c.numerics.text for c in candidates],
        "evidence": [
            "; ".join(f"{e.toggle}={e.requested}: {e.status}: {e.text}" for e in c.evidence)
            for c in candidates
        ],
    }


def option_rows(
    search: Search, verdicts: Verdicts, blocked: Mapping[tuple[str, str], str]
) -> TableColumns:
    """Return one row for each option that is not the start's: whether it was tried, or why not.

    ``blocked``: the toggles and options that no change of toggles makes usable here, with reasons.
    """
    options = [
        (axis, option)
        for axis, dimension in enumerate(search.dimensions)
        for option in dimension.options
        if option != dimension.start
    ]
    by_option = {o: [c for c in search.candidates if c.point[o[0]] == o[1]] for o in options}
    result = (verdicts.best or search.start).point
    states = [
        (IN_RESULT, "") if result[o[0]] == o[1] else _state_of(search, o, by_option[o])
        for o in options
    ]
    effects = search.knowledge.effects
    nothing = [math.nan] * len(blocked)
    return {
        "toggle": [
            *(search.dimensions[axis].name for axis, _ in options),
            *(t for t, _ in blocked),
        ],
        "option": [*(option for _, option in options), *(option for _, option in blocked)],
        "state": [*(state for state, _ in states), *[BLOCKED] * len(blocked)],
        "tried": [
            *(sum(c.state == RACED for c in by_option[option]) for option in options),
            *[0] * len(blocked),
        ],
        "estimate": [*(_exp(effects.get(option, math.nan)) for option in options), *nothing],
        "reason": [*(reason for _, reason in states), *blocked.values()],
    }


def verdict_rows(verdicts: Verdicts) -> TableColumns:
    """Return one row for each verdict: on step time, then on peak memory, then on energy."""
    peaks = [arm.peak_bytes for arm in verdicts.arms]
    is_known = all(math.isfinite(peak) for peak in peaks)
    memory = estimation.memory(verdicts.contrasts, peaks) if is_known else []
    rows = effect_rows(verdicts.effects, memory if verdicts.effects else [])
    energy = effect_rows(verdicts.energy, [])
    energy["quantity"] = ["energy"] * len(verdicts.energy)
    return {name: [*column, *energy[name]] for name, column in rows.items()}


def final_facts(search: Search, verdicts: Verdicts) -> dict[str, Scalar]:
    """Return the facts of a search that has ended, for a reader of its tables."""
    payoff, more_s = verdicts.payoff_steps(), estimation.more_s(verdicts.effects)
    return {
        "final": True,
        "complete": search.is_complete and verdicts.best in (search.best, None),
        "rounds": len(verdicts.rounds),
        "seconds": verdicts.seconds,
        "settled": verdicts.is_settled,
        "builds": len(set(verdicts.builds)),
        "one_build": verdicts.one_build,
        "configurations": len(search.candidates),
        "left_out": len(search.left_out),
        **{f"{activity}_s": seconds for activity, seconds in search.plan.seconds.items()},
        **({"payoff_steps": payoff} if math.isfinite(payoff) else {}),
        **({} if more_s is None else {"more_s": more_s}),
    }


def _role(candidate: Candidate, search: Search, verdicts: Verdicts) -> str:
    if candidate is verdicts.best:
        return BEST
    if candidate is search.start:
        return START
    return RUNNER_UP if candidate is verdicts.runner_up else ""


def _reason(candidate: Candidate, search: Search) -> str:
    if candidate.reason or candidate.numerics is None:
        return candidate.reason
    return search.objection(candidate)


def _state_of(
    search: Search, option: tuple[int, str], candidates: list[Candidate]
) -> tuple[str, str]:
    """Return the state of an option, and the reason if it was not measured."""
    if any(candidate.state == RACED for candidate in candidates):
        reasons = [reason for c in candidates if (reason := _reason(c, search))]
        return TRIED, reasons[0] if len(reasons) == len(candidates) else ""
    if candidates:
        return candidates[0].state, candidates[0].reason
    points = [replaced(origin.point, [option]) for origin in (search.start, search.best)]
    reasons = [search.left_out[point] for point in points if point in search.left_out]
    reason = reasons[0] if reasons else "the search ended before its turn"
    state, colon, why = reason.partition(": ")
    return (state, why) if colon and state == BLOCKED else (NOT_TRIED, reason)


def _wrong(candidate: Candidate) -> float | None:
    numerics = candidate.numerics
    return None if numerics is None or numerics.ok is None else float(not numerics.ok)


def _end(race: Race, sign: int) -> float:
    return race.mean + sign * race.half


def _exp(value: float) -> float:
    return math.exp(value) if math.isfinite(value) else math.nan
