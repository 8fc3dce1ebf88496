"""A prediction from the roofline before a comparison is measured, and the residual afterwards.

The least time of a step is the sum of the least times of its operators at the device's measured
ceilings: its FLOPs at the matrix rate of its dtype, or its bytes at the rate of a large copy,
whichever takes longer (Williams, Waterman and Patterson, Roofline, CACM 52, 2009). The ratio of two
such times is the prediction. It ignores caches, launches and the distance of kernels from the roof.
Their effect is the residual.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sessions.model import PairedComparison, Prediction
from sessions.numbers import STEP_TIME, number, percent_text
from sessions.plain_text import capitalized

NO_PREDICTION = "no prediction"


@dataclass(frozen=True)
class Least:
    """The least time of one configuration's step; ``why`` says why it is not known."""

    us: float | None
    why: str = ""
    captured: bool = False  # replayed as a CUDA graph, so that no launch is waited for


def none(why: str) -> Prediction:
    """Return no prediction, and the reason."""
    return Prediction(ratio=None, text=why)


def predict(base: Least, other: Least, idle: float = math.nan) -> Prediction:
    """Return the ratio of two least times.

    ``idle``: the share of the base's steps, 0 to 1, in which the GPU had nothing to do. It matters
    if CUDA graphs are added, and is NaN if unknown.
    """
    for step in (base, other):
        if step.us is None or not step.us > 0:
            return none(step.why or "the step has no work that the roofline could count")
    assert base.us is not None and other.us is not None
    ratio = other.us / base.us
    text = f"at the measured ceilings, A needs at least {_ms(base.us)} and B {_ms(other.us)}"
    if base.captured and not other.captured:
        return none("how long the GPU waits for the host without CUDA graphs is not known")
    if other.captured and not base.captured:
        if not math.isfinite(idle):
            return none(
                "CUDA graphs remove the time in which the GPU waits for the host, which is not "
                "known for A; profile A first"
            )
        ratio *= 1 - idle
        text += f"; the GPU waits in {percent_text(idle)} of A's profile"
    return Prediction(ratio=ratio, text=text, base_us=base.us, other_us=other.us)


def of(comparison: PairedComparison) -> Prediction | None:
    """Return the prediction that was made before the comparison; None without one."""
    stored = comparison.facts.get("prediction")
    if not isinstance(stored, dict) or not isinstance(stored.get("text"), str):
        return None
    ratio, *ends = (_positive(stored.get(name)) for name in ("ratio", "base_us", "other_us"))
    return Prediction(ratio=ratio, text=stored["text"], base_us=ends[0], other_us=ends[1])


def residual(comparison: PairedComparison) -> float | None:
    """Return measured less predicted ratio: below 0, B is better than its prediction."""
    predicted = of(comparison)
    if predicted is None or predicted.ratio is None or not math.isfinite(comparison.ratio):
        return None
    return comparison.ratio - predicted.ratio


def line(predicted: Prediction) -> str:
    """Return the prediction as a sentence without its full stop."""
    if predicted.ratio is None:
        return f"{NO_PREDICTION}: {predicted.text}"
    return f"predicted by the roofline: {_ratio(predicted.ratio)} {STEP_TIME} ({predicted.text})"


def outcome(comparison: PairedComparison) -> str:
    """Return prediction, measured ratio and residual in a line; empty without a prediction."""
    predicted, left = of(comparison), residual(comparison)
    if predicted is None:
        return ""
    if left is None or predicted.ratio is None:
        return capitalized(line(predicted))
    claim = f"Predicted {_ratio(predicted.ratio)}, measured {_ratio(comparison.ratio)} {STEP_TIME}"
    if not (math.isfinite(comparison.low) and math.isfinite(comparison.high)):
        return f"{claim} so far: no interval yet"
    if comparison.low <= predicted.ratio <= comparison.high:
        return f"{claim}: the roofline estimate lies within the interval"
    word = "better" if left < 0 else "worse"
    return f"{claim}: {_difference(abs(left))} {word} than the roofline estimate explains"


def _positive(value: object) -> float | None:
    known = isinstance(value, int | float) and math.isfinite(value) and value > 0
    return float(value) if known else None  # type: ignore[arg-type]


def _ratio(value: float) -> str:
    return f"{value:.2f}" if 0.095 <= value < 9.95 else number(value)


def _difference(value: float) -> str:
    return f"{value:.2f}" if value >= 0.005 else "less than 0.01"


def _ms(us: float) -> str:
    return f"{number(us / 1e3)} ms" if us >= 100 else f"{number(us)} us"
