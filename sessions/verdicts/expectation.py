"""The answer to an expected ratio of a paired comparison: it holds, does not hold, or is open."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sessions.model import Judgement
from sessions.numbers import interval_text
from sessions.verdicts.verdict import MIN_PAIRS, Interval, of_all_steps, seconds_to_tell


@dataclass(frozen=True)
class Answer:
    """``holds`` is None where the pairs leave it open; ``reasons`` and ``more_s`` are about that.

    ``more_s``: seconds of measuring that should tell, beyond those so far; None where not known.
    """

    holds: bool | None
    reasons: list[str]
    more_s: float | None = None


def at_most(
    judgement: Judgement,
    most: float,
    region: float,
    time: Interval | None = None,
    seconds: float = math.nan,
) -> Answer:
    """Return whether the second arm takes at most ``most`` of the first's step time.

    The answer is open with the verdict if pairs are too few, clocks differed, or means refute the
    medians; the edges of the ``region`` (the larger of it and the floor) do not matter,
    those of ``most`` do, for the means too. ``time`` is the interval of the log ratio, ``seconds``
    how long its pairs took: for ``more_s``.
    """
    low, high = judgement.low, judgement.high
    more_s = None if time is None else seconds_to_tell(time, math.log(most), seconds)
    if judgement.pairs < MIN_PAIRS or low is None or high is None:
        return Answer(None, judgement.reasons, more_s)
    below, above = 1 / (1 + region), 1 + region
    clear = high < below or low > above or (below <= low and high <= above)
    if clear and judgement.verdict == "UNDECIDED":
        return Answer(None, judgement.reasons, judgement.more_s)
    holds = _side(low, high, most)
    if holds is None:
        return Answer(None, ["the interval includes that limit"], more_s)
    mean_ratio = [end for end in judgement.of_means or [] if end is not None]
    if len(mean_ratio) == 3 and _side(mean_ratio[1], mean_ratio[2], most) is (not holds):
        claim = "holds" if holds else "does not hold"
        ratio = interval_text(mean_ratio[0], mean_ratio[1], mean_ratio[2], most - 1)
        return Answer(None, [f"by the median step it {claim}, but {of_all_steps(ratio)}"])
    return Answer(holds, [])


def _side(low: float, high: float, most: float) -> bool | None:
    """Return True if an interval lies at or below ``most``; None if it includes ``most``."""
    return None if low <= most < high else high <= most
