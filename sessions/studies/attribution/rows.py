"""The rows of an attribution's tables, as they are sent: its arms, and the effects they show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sessions.columns import TableColumns
from sessions.model import Evidence, Numerics
from sessions.studies.attribution import design, estimation


@dataclass
class Arm:
    """An arm: the toggles that are on by place, and what was learned of it so far.

    ``state``: measured, blocked, out of memory, not built, refused or failed; ``reason`` says why
    it is not measured.
    """

    on: design.Subset
    title: str
    state: str = "measured"
    reason: str = ""
    peak_bytes: float = math.nan
    numerics: Numerics | None = None
    evidence: list[Evidence] = field(default_factory=list)
    path: str = ""  # how its experts were computed, and the ranks of its heads


def arm_rows(arms: Sequence[Arm], medians_ms: estimation.Table) -> TableColumns:
    """Return one row for each arm.

    ``ratio``, ``low`` and ``high`` are of its step time over the first arm's.
    """
    ratios = estimation.against_first(medians_ms)
    numerics = [arm.numerics for arm in arms]
    return {
        "arm": [*range(len(arms))],
        "title": [arm.title for arm in arms],
        "on": [" ".join(str(toggle) for toggle in sorted(arm.on)) for arm in arms],
        "state": [arm.state for arm in arms],
        "reason": [arm.reason for arm in arms],
        "step_ms": [*estimation.typical_ms(medians_ms)],
        "rounds": [ratio.n for ratio in ratios],
        "ratio": [_exp(ratio.mean) for ratio in ratios],
        "low": [_exp(ratio.low) for ratio in ratios],
        "high": [_exp(ratio.high) for ratio in ratios],
        "peak_bytes": [arm.peak_bytes for arm in arms],
        "wrong": [
            None if check is None or check.ok is None else float(not check.ok) for check in numerics
        ],
        "mse": [None if check is None else check.mse for check in numerics],
        "max_error": [None if check is None else check.max_error for check in numerics],
        "numerics": ["" if check is None else check.text for check in numerics],
        "evidence": [
            "; ".join(f"{e.toggle}={e.requested}: {e.status}: {e.text}" for e in arm.evidence)
            for arm in arms
        ],
        "path": [arm.path for arm in arms],
    }


def effect_rows(effects: Sequence[estimation.Effect], memory: Sequence[float]) -> TableColumns:
    """Return one row for each effect: on step time with interval and verdict, then on memory."""
    judged = [effect.judgement for effect in effects]
    reasons = [
        effect.reason if effect.judgement is None else "; ".join(effect.judgement.reasons)
        for effect in effects
    ]
    blank: list[float | str | None] = [None] * len(memory)
    contrasts = [effect.contrast for effect in effects]
    with_memory = contrasts[: len(memory)]
    return {
        "quantity": [*["time"] * len(effects), *["memory"] * len(memory)],
        "kind": [contrast.kind for contrast in [*contrasts, *with_memory]],
        "name": [contrast.name for contrast in [*contrasts, *with_memory]],
        "ratio": [
            *(None if judgement is None else judgement.ratio for judgement in judged),
            *memory,
        ],
        "low": [*(None if judgement is None else judgement.low for judgement in judged), *blank],
        "high": [*(None if judgement is None else judgement.high for judgement in judged), *blank],
        "p": [*(None if judgement is None else judgement.p for judgement in judged), *blank],
        "rounds": [*(0 if judgement is None else judgement.pairs for judgement in judged), *blank],
        "verdict": [
            *("" if judgement is None else judgement.verdict for judgement in judged),
            *[""] * len(memory),
        ],
        "reason": [*reasons, *(contrast.reason for contrast in with_memory)],
    }


def _exp(value: float) -> float:
    return math.exp(value) if math.isfinite(value) else math.nan
