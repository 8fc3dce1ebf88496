"""A paired comparison in words, for the command line, the window and reports alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sessions.checked import MARKS
from sessions.comparison import OTHERS, OWN_PEAK
from sessions.model import PairedComparison, Segment
from sessions.numbers import Measured, number, text
from sessions.sizes import size_text
from sessions.verdict import REGION, are_right, unchecked_arms, wrong_arms

SMALL_P = 0.001
_MEASURES = (
    ("max_error", "largest error", ".2g"),
    ("mse", "MSE", ".2g"),
    ("cosine", "cosine", ".6f"),
)
_SAYS = {"FASTER": "B is FASTER than A", "SLOWER": "B is SLOWER than A"}


def region_of(comparison: PairedComparison) -> float:
    """The ratio from 1 within which the arms count as the same: region or floor."""
    facts = comparison.facts
    return max(facts.get("region", REGION), facts.get("floor", 0.0))


def headline(comparison: PairedComparison) -> str:
    """The verdict in a few words; wrong numbers before all, and what nobody checked behind."""
    wrong, unchecked = wrong_arms(comparison), unchecked_arms(comparison)
    said = _SAYS.get(comparison.verdict, comparison.verdict)
    if comparison.verdict == "SAME":
        said = f"B is the SAME as A within ±{100 * region_of(comparison):.2g} %"
    if comparison.facts.get("invalid"):
        said = "INVALID: an arm is faster than this device can run it"
    if wrong:
        arms = " and ".join(arm for arm, _ in wrong)
        said = f"{arms} computed wrong numbers; by time: {said}"
    if unchecked:
        said += f"; numbers of {' and '.join(arm for arm, _ in unchecked)} not checked"
    return said


def ratio_line(comparison: PairedComparison) -> str:
    """The ratio with its interval, and what it rests on."""
    facts = comparison.facts
    pairs, seconds = facts.get("pairs", 0), facts.get("seconds") or math.nan
    basis = f"{pairs} pair{'' if pairs == 1 else 's'}"
    if (builds := facts.get("builds", 1)) > 1:
        basis += f" of {builds} builds"
    if math.isfinite(seconds):
        basis += f" in {duration(seconds)}"
    if not math.isfinite(comparison.ratio):
        return f"no ratio yet ({basis})"
    if not math.isfinite(comparison.low):
        return f"B takes {comparison.ratio:.3g} of A's step time; no interval yet ({basis})"
    error = (comparison.high - comparison.low) / 2
    value, low, high = (
        text(Measured(end, error)) for end in (comparison.ratio, comparison.low, comparison.high)
    )
    return f"B takes {value} of A's step time, 95 % interval {low} to {high} ({basis})"


def standing(comparison: PairedComparison) -> str:
    """How it stands among the others of its session; empty where it is alone."""
    of = comparison.facts.get("of")
    if of is None:
        return ""
    return f"one of {of} comparisons: p {p_text(comparison.facts['p_holm'])} by Holm's correction"


def p_text(p: float) -> str:
    """A p value as a person reads it; nobody needs more digits of a very small one."""
    return number(p) if p >= SMALL_P else f"below {SMALL_P:g}"


def remarks(comparison: PairedComparison) -> list[str]:
    """Why the verdict is not a clearer one, and what would make it so: sentences."""
    facts = comparison.facts
    said = [sentence(reason) for reason in facts.get("reasons", [])]
    if others := facts.get("others"):
        said.append(sentence(f"{others} while A and B alternated"))
    if note := facts.get("floor_note"):
        said.append(sentence(note))
    said += rebuilding(facts)
    if facts.get("one_build") and facts.get("builds", 1) == 1:
        said.append(f"This holds for the build that was measured: {facts['one_build']}.")
    if comparison.verdict == "UNDECIDED" and facts.get("final"):
        more_s = facts.get("more_s")
        if more_s is not None and math.isfinite(more_s):
            said.append(f"Measuring about {duration(math.ceil(more_s))} more should decide.")
    return said


def more_text(more_s: float, seconds: float) -> str:
    """How much longer measuring should take, and how long that is from the beginning: a clause."""
    more = duration(math.ceil(more_s)) if math.isfinite(more_s) else "an unknown time"
    return f"measuring about {more} more should decide, {budget_of(more_s, seconds):,.0f} s in all"


def budget_of(more_s: float, seconds: float) -> float:
    """The budget, in whole seconds, of measuring once more from the beginning and as long."""
    return float(math.ceil(more_s + seconds)) if math.isfinite(more_s + seconds) else math.nan


def rebuilding(facts: Mapping[str, Any]) -> list[str]:
    """That each block built its arm anew, and why, where it did: a sentence."""
    if not facts.get("rebuilt_each_block"):
        return []
    # Sessions from before captures were told apart hold no reason.
    why = facts.get("rebuilt_because") or "the arms do not fit in memory together"
    return [sentence(f"{why}: each block built its arm anew")]


def numerics_lines(comparison: PairedComparison) -> list[str]:
    """One line for each arm whose numbers were looked at."""
    lines = []
    for arm, found in sorted(comparison.facts.get("numerics", {}).items()):
        against = f" against {found['reference']}" if found["reference"] else ""
        mark = MARKS[are_right(found)]
        line = f"{'AB'[int(arm)]}: numbers {mark}{against}: {found['text']}"
        measures = [
            f"{title} {found[name]:{digits}}"
            for name, title, digits in _MEASURES
            if found.get(name) is not None
        ]
        line += "; " * bool(measures) + ", ".join(measures)
        lines.append(line)
    return lines


def memory_words(comparison: PairedComparison, side: str, segments: Sequence[Segment]) -> str:
    """Arm "A"'s or "B"'s highest memory, apart from what others held; empty where not counted."""
    places, arm = comparison.facts.get("segments", []), "AB".index(side)
    if arm >= len(places) or places[arm] >= len(segments):
        return ""
    ledger = segments[places[arm]].ledger
    if OWN_PEAK not in ledger:
        return ""
    said = f"peak memory {size_text(float(ledger[OWN_PEAK]))} of its own"
    others = float(ledger.get(OTHERS, 0.0))
    return f"{said}, beside {size_text(others)} held for other configurations" if others else said


def duration(seconds: float) -> str:
    """Seconds as a person says them: 8 s, 3 min, 2 h."""
    if seconds < 9.95:
        return f"{seconds:.1f} s" if seconds < 2 else f"{seconds:.0f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def sentence(reason: str) -> str:
    """A clause as a sentence."""
    return f"{reason[:1].upper()}{reason[1:]}."
