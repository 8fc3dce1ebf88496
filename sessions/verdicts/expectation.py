"""Whether a paired comparison shows what somebody expects of it, does not, or leaves it open."""

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
    found: Interval | None = None,
    seconds: float = math.nan,
) -> Answer:
    """Whether the second arm takes at most ``most`` of the first's step time.

    It is open with the verdict where there are too few pairs, clocks that differed, or means that
    refute the medians; the edges of the ``region`` (the larger of it and the floor) do not matter,
    those of ``most`` do, for the means too. ``found`` is the interval of the log ratio, ``seconds``
    how long its pairs took: for ``more_s``.
    """
    low, high = judgement.low, judgement.high
    more_s = None if found is None else seconds_to_tell(found, math.log(most), seconds)
    if judgement.pairs < MIN_PAIRS or low is None or high is None:
        return Answer(None, judgement.reasons, more_s)
    below, above = 1 / (1 + region), 1 + region
    clear = high < below or low > above or (below <= low and high <= above)
    if clear and judgement.verdict == "UNDECIDED":
        return Answer(None, judgement.reasons, judgement.more_s)
    holds = _side(low, high, most)
    if holds is None:
        return Answer(None, ["the interval reaches over that"], more_s)
    whole = [each for each in judgement.whole or [] if each is not None]
    if len(whole) == 3 and _side(whole[1], whole[2], most) is (not holds):
        said = "holds" if holds else "does not hold"
        ratio = interval_text(whole[0], whole[1], whole[2], most - 1)
        return Answer(None, [f"by the median step it {said}, but {of_all_steps(ratio)}"])
    return Answer(holds, [])


def _side(low: float, high: float, most: float) -> bool | None:
    """Whether an interval lies at or below ``most``; None where it reaches over."""
    return None if low <= most < high else high <= most
