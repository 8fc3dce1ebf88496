"""The rows of an attribution's tables, as they are sent: its arms, and the effects they show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sessions.model import Evidence, Numerics
from sessions.studies import attribution

Rows = dict[str, list[float | str | None]]


@dataclass
class Arm:
    """An arm: the toggles that are on by place, and what was learned of it so far.

    ``state``: measured, blocked, out of memory, not built or failed; ``reason`` says why it is not
    measured.
    """

    on: attribution.Subset
    title: str
    state: str = "measured"
    reason: str = ""
    peak_bytes: float = math.nan
    numerics: Numerics | None = None
    evidence: list[Evidence] = field(default_factory=list)
    path: str = ""  # what computed its experts, and the ranks of its heads


def arm_rows(arms: Sequence[Arm], medians_ms: attribution.Table) -> Rows:
    """One row an arm: ``ratio``, ``low`` and ``high`` are of its step time over the first arm's."""
    ratios = attribution.against_first(medians_ms)
    numerics = [arm.numerics for arm in arms]
    return {
        "arm": [*range(len(arms))],
        "title": [arm.title for arm in arms],
        "on": [" ".join(str(place) for place in sorted(arm.on)) for arm in arms],
        "state": [arm.state for arm in arms],
        "reason": [arm.reason for arm in arms],
        "step_ms": [*attribution.typical_ms(medians_ms)],
        "rounds": [one.n for one in ratios],
        "ratio": [_exp(one.mean) for one in ratios],
        "low": [_exp(one.low) for one in ratios],
        "high": [_exp(one.high) for one in ratios],
        "peak_bytes": [arm.peak_bytes for arm in arms],
        "wrong": [None if one is None or one.ok is None else float(not one.ok) for one in numerics],
        "mse": [None if one is None else one.mse for one in numerics],
        "max_error": [None if one is None else one.max_error for one in numerics],
        "numerics": ["" if one is None else one.text for one in numerics],
        "evidence": [
            "; ".join(f"{e.toggle}={e.requested}: {e.status}: {e.text}" for e in arm.evidence)
            for arm in arms
        ],
        "path": [arm.path for arm in arms],
    }


def effect_rows(effects: Sequence[attribution.Effect], memory: Sequence[float]) -> Rows:
    """One row an effect: on step time with interval and verdict, then on memory without."""
    judged = [one.judgement for one in effects]
    reasons = [
        one.reason if one.judgement is None else "; ".join(one.judgement.reasons) for one in effects
    ]
    blank: list[float | str | None] = [None] * len(memory)
    contrasts = [one.contrast for one in effects]
    again = contrasts[: len(memory)]
    return {
        "quantity": [*["time"] * len(effects), *["memory"] * len(memory)],
        "kind": [one.kind for one in [*contrasts, *again]],
        "name": [one.name for one in [*contrasts, *again]],
        "ratio": [*(None if one is None else one.ratio for one in judged), *memory],
        "low": [*(None if one is None else one.low for one in judged), *blank],
        "high": [*(None if one is None else one.high for one in judged), *blank],
        "p": [*(None if one is None else one.p for one in judged), *blank],
        "rounds": [*(0 if one is None else one.pairs for one in judged), *blank],
        "verdict": [*("" if one is None else one.verdict for one in judged), *[""] * len(memory)],
        "reason": [*reasons, *(one.reason for one in again)],
    }


def _exp(value: float) -> float:
    return math.exp(value) if math.isfinite(value) else math.nan
