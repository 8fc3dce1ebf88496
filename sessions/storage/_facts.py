"""Types and ranges of the free-form parts of a session that this program reads.

Ledgers, facts and questions are JSON objects whose entries differ from version to version. An entry
that is read somewhere must have its type and range here; all others are only shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from sessions.errors import SessionError
from sessions.model import (
    ATTRIBUTION,
    CHECKLIST,
    CLAIMS,
    OPTIMIZATION,
    PROFILE,
    SCALING,
    SWEEP,
    Scalar,
)
from sessions.numbers import LARGEST

Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Positive = Annotated[float, Meta(ge=1e-9, le=LARGEST)]
Amount = Annotated[float, Meta(ge=0, le=LARGEST)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Texts = list[str]


class _Facts(msgspec.Struct, frozen=True):
    """Entries that are read somewhere; they may be NaN, and missing where they have a default."""


class _Ledger(_Facts, frozen=True):
    numbers: str = ""
    numbers_right: bool | None = None
    numbers_tolerance: Amount = 0.0
    losses_tolerance: Amount = 0.0
    result_sketch: str = ""
    early_loss: Number | str | None = None
    draws_random_numbers: bool = False
    model_commit: str = ""
    model_file: str = ""
    failure: str | None = ""
    tiles: str | None = ""
    text: str = ""
    prompt: str = ""
    prefill_ms: Amount = 0.0
    prefills: Count = 0
    matrix_dtype: str | None = ""
    ceilings_created: Number | None = None
    matrix_flops_per_s: Amount | None = None
    model_flops: Amount | None = None
    parameters: Number | None = None
    tokens_per_step: Number | None = None
    devices: Count | None = None
    own_peak_bytes: Amount = 0.0
    others_bytes: Amount = 0.0
    autotune_s: Amount = 0.0
    first_s: Amount | None = None
    error: Number | None = None
    host_us: Amount | None = None
    host_outside_us: Number | None = None
    kernel_us: Amount | None = None
    flops_per_s: Positive | None = None
    bytes_per_s: Positive | None = None
    flops: Amount | None = None
    bytes: Amount | None = None
    floor_us: Amount | None = None


class _Kernel(_Facts, frozen=True):
    """Entries of a kernel that was timed."""

    flops: Amount
    bytes: Amount
    floor_us: Amount


class _Numerics(_Facts, frozen=True):
    text: str
    reference: str
    ok: bool | None
    max_error: Amount | None = None
    mse: Amount | None = None
    cosine: Number | None = None


class _Prediction(_Facts, frozen=True):
    text: str = ""
    ratio: Positive | None = None


class _Energy(_Facts, frozen=True):
    joules: list[Annotated[list[Positive], Meta(min_length=2, max_length=2)]] = []
    ratio: Positive | None = None
    low: Positive | None = None
    high: Positive | None = None
    why_not: str = ""


class _Comparison(_Facts, frozen=True):
    segments: list[Count] = []
    region: Annotated[float, Meta(ge=0, le=1e3)] = 0.0
    floor: Annotated[float, Meta(ge=0, le=1e3)] = 0.0
    floor_note: str | None = ""
    pairs: Count = 0
    seconds: Amount | None = None
    more_s: Amount | None = None
    of: Count | None = None
    p: Probability | None = None
    p_holm: Probability = 1.0
    alone: str = ""
    reasons: Texts = []
    disturbance: str | None = msgspec.field(default="", name="others")
    of_means: list[Positive | None] | None = msgspec.field(default=None, name="whole")
    cycles: list[Positive | None] | None = None
    history: list[Annotated[list[Positive | None], Meta(min_length=4, max_length=4)]] = []
    numerics: dict[Literal["0", "1"], _Numerics] = {}
    energy: _Energy | None = None
    prediction: _Prediction | None = None
    rebuilt_each_block: bool = False
    rebuilt_because: str | None = ""
    order: str | None = ""
    builds: Count = 1
    one_build: str = ""
    difference: str = ""
    differing: Texts = []


class _AttributionFacts(_Facts, frozen=True):
    memory: str = ""
    seconds: Amount = 0.0
    rounds: Count = 0
    more_s: Amount | None = None
    rebuilt_because: str | None = ""


class _FinalMeasurement(_Facts, frozen=True):
    seconds: Amount
    rounds: Count


class _AttributionQuestion(_Facts, frozen=True):
    floor_note: str | None = ""
    mode: str = ""


class _OptimizationQuestion(_Facts, frozen=True):
    objective: str = ""
    start: Texts = []
    floor_note: str | None = ""
    region: Amount = 0.0
    floor: Amount = 0.0


class _OptimizationFacts(_Facts, frozen=True):
    memory: str = ""
    seconds: Amount = 0.0
    rounds: Count = 0
    complete: bool = False
    more_s: Amount | None = None
    payoff_steps: Amount | None = None
    builds: Count = 1
    one_build: str = ""
    build_s: Amount = 0.0
    race_s: Amount = 0.0
    check_s: Amount = 0.0
    prediction_s: Amount = 0.0
    verdicts_s: Amount = 0.0
    rebuilt_because: str | None = ""


class _SweepQuestion(_Facts, frozen=True):
    fields: Annotated[Texts, Meta(min_length=1, max_length=2)]
    arms: Annotated[Texts, Meta(min_length=1)]
    order: str = ""
    points: Count = 0
    values_0: list[Scalar] = []
    values_1: list[Scalar] = []
    toggles: Texts = []


class _ScalingQuestion(_Facts, frozen=True):
    mode: str = ""
    batch: Count = 0
    kinds: Texts = []
    ranks: list[Count] = []


class _ScalingFacts(_Facts, frozen=True):
    memory: str = ""
    communication: str = ""
    device: str = ""


class _ProfileFacts(_Facts, frozen=True):
    no_least: str | None = ""
    step_us: Amount | None = None
    busy_us: Amount | None = None
    ceiling_bytes_per_s: Positive | None = None
    ceiling_dtypes: Texts = []
    ceiling_flops_per_s: list[Positive] = []
    notes: Texts | None = []


class _ChecklistFacts(_Facts, frozen=True):
    more_s: Amount | None = None
    seconds: Amount = 0.0


class _OpenChecklist(_Facts, frozen=True):
    more_s: Amount
    seconds: Amount


class _ChecklistQuestion(_Facts, frozen=True):
    configuration: str = ""
    expect_speedup: Number | None = None


class _ClaimsQuestion(_Facts, frozen=True):
    document: str = ""
    documents: Texts = []
    experiments: Texts = []
    budget_s: Number | None = None
    limit_s: Number | None = None


_QUESTIONS: dict[str, type[_Facts]] = {
    ATTRIBUTION: _AttributionQuestion,
    OPTIMIZATION: _OptimizationQuestion,
    SWEEP: _SweepQuestion,
    SCALING: _ScalingQuestion,
    CHECKLIST: _ChecklistQuestion,
    CLAIMS: _ClaimsQuestion,
}
_ANSWERS: dict[str, type[_Facts]] = {
    ATTRIBUTION: _AttributionFacts,
    OPTIMIZATION: _OptimizationFacts,
    PROFILE: _ProfileFacts,
    SCALING: _ScalingFacts,
    CHECKLIST: _ChecklistFacts,
}


def check_ledger(ledger: Mapping[str, Any], is_timed_kernel: bool, location: str) -> None:
    """Raise ``SessionError`` for an entry of a segment's ledger with a wrong type or value."""
    _check(ledger, _Ledger, location)
    if is_timed_kernel:
        _check(ledger, _Kernel, location)


def check_comparison(facts: Mapping[str, Any], location: str) -> None:
    """Raise ``SessionError`` for a fact of a comparison with a wrong type or value."""
    _check(facts, _Comparison, location)
    if "of" in facts and "p_holm" not in facts:
        raise SessionError(f"the facts of its {location} lack p_holm")


def check_study(
    kind: str, question: Mapping[str, Any], facts: Mapping[str, Any], location: str
) -> None:
    """Raise ``SessionError`` for a fact or a question of a study that its kind does not have so."""
    if kind in _QUESTIONS:
        _check(question, _QUESTIONS[kind], location)
    if kind in _ANSWERS:
        _check(facts, _ANSWERS[kind], location)
    if kind in (ATTRIBUTION, OPTIMIZATION) and facts.get("final"):
        _check(facts, _FinalMeasurement, location)
    if kind == CHECKLIST and facts.get("more_s") is not None:
        _check(facts, _OpenChecklist, location)


def _check(facts: Mapping[str, Any], kind: type[_Facts], location: str) -> None:
    try:
        msgspec.convert(_known(facts), kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # a lone surrogate
        raise SessionError(f"the facts of its {location} are not usable ({error})") from None


def _known(value: Any) -> Any:
    """Return the value with 1 for NaN, which says that a number is not known."""
    if isinstance(value, dict):
        return {name: _known(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_known(entry) for entry in value]
    return 1 if isinstance(value, float) and math.isnan(value) else value
