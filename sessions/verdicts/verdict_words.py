"""A paired comparison in words, for the command line, the window and reports alike."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sessions.model import Judgement, PairedComparison, Segment
from sessions.numbers import STEP_TIME, counted, interval_text, margin_text, number, ratio_words
from sessions.numerics import MARKS
from sessions.plain_text import first_clause, sentence
from sessions.sizes import size_text
from sessions.verdicts.arm_results import are_right, unchecked_arms, wrong_arms
from sessions.verdicts.comparison import OTHERS, OWN_PEAK
from sessions.verdicts.verdict import ALPHA, region_of
from sessions.verdicts.work import DIFFERENCE, DIFFERING, INVALID

SMALL_P = 0.001
RARE = 0.05  # blocks of which a verdict may say nothing without saying so
_MEASURES = (
    ("max_error", "largest error", ".2g"),
    ("mse", "MSE", ".2g"),
    ("cosine", "cosine", ".6f"),
)
_SAYS = {"FASTER": "B is FASTER than A", "SLOWER": "B is SLOWER than A"}


def verdict_word(comparison: PairedComparison) -> str:
    """Return the verdict, or "different models" or "invalid" where the ratio is no speed-up."""
    if comparison.facts.get(INVALID):
        return INVALID
    return str(comparison.facts.get(DIFFERENCE) or comparison.verdict)


def headline(comparison: PairedComparison) -> str:
    """Say the verdict in a few words; wrong numbers come first, unchecked numbers last."""
    wrong, unchecked = wrong_arms(comparison), unchecked_arms(comparison)
    claim = _SAYS.get(comparison.verdict, comparison.verdict)
    if comparison.verdict == "SAME":
        claim = f"B is the SAME as A within ±{margin_text(region_of(comparison))}"
    if comparison.facts.get(INVALID):
        claim = "INVALID: an arm is faster than this device can run it"
    elif kind := comparison.facts.get(DIFFERENCE):
        fields = ", ".join(comparison.facts.get(DIFFERING, []))
        claim = f"{str(kind).capitalize()} ({fields}): the ratio is no speed-up"
    if wrong:
        arms = " and ".join(arm for arm, _ in wrong)
        claim = f"{arms} computed wrong numbers; by time: {claim}"
    if unchecked:
        claim += f"; numbers of {' and '.join(arm for arm, _ in unchecked)} not checked"
    return claim


def interim_headline(comparison: PairedComparison) -> str:
    """Say what a comparison in progress shows so far: without a ratio, nothing."""
    shows = math.isfinite(comparison.ratio) or wrong_arms(comparison)
    return f"Measuring: {headline(comparison)}" if shows else "Measuring"


def ratio_line(comparison: PairedComparison) -> str:
    """Say the ratio with its interval and its basis."""
    if not math.isfinite(comparison.ratio):
        return f"no ratio yet ({basis(comparison)})"
    return f"B against A: {_ratio_of(comparison)}, {basis(comparison)}"


def basis(comparison: PairedComparison) -> str:
    """Say the basis of the ratio: "12 pairs of 3 builds in 8 s"."""
    facts = comparison.facts
    seconds = facts.get("seconds") or math.nan
    text = counted(pair_count(comparison), "pair")
    if (builds := facts.get("builds", 1)) > 1:
        text += f" of {builds} builds"
    if math.isfinite(seconds):
        text += f" in {duration(seconds)}"
    return text


def pair_count(comparison: PairedComparison) -> int:
    """Return the pairs that count; by its blocks if the session does not store the number."""
    if "pairs" in comparison.facts:
        return int(comparison.facts["pairs"])
    blocks = range(len(comparison.order))
    voids = comparison.voids or [""] * len(blocks)
    numbers = comparison.pairs or [block // 2 for block in blocks]
    valid = Counter(number for number, void in zip(numbers, voids, strict=False) if not void)
    return sum(count == 2 for count in valid.values())


def summary_sentence(comparison: PairedComparison) -> str:
    """Say how much faster or slower B is, how sure that is, and whether its results are right.

    Without a subject and a full stop:
    "1.06x faster (95 % interval 1.03 to 1.10), results match FP64".
    """
    ends = comparison.ratio, comparison.low, comparison.high
    claim = claim_words(verdict_word(comparison), *ends, region_of(comparison))
    return f"{claim}, {_results(comparison)}"


def brief_summary(comparison: PairedComparison) -> str:
    """Say the verdict for one short line: "1.24x faster, results match".

    The ratio is rounded by its interval, which ``summary_sentence`` shows.
    """
    ends = comparison.ratio, comparison.low, comparison.high
    word, region = verdict_word(comparison), region_of(comparison)
    claim = word.lower() if word == "UNDECIDED" else claim_words(word, *ends, region)
    claim, _, _ = claim.partition(" (")
    if word == "SAME":
        claim, _, _ = claim.partition(",")
    wrong = wrong_arms(comparison)
    if not wrong and not _references(comparison):
        return f"{claim}, results not checked"
    return f"{claim}, {'WRONG results' if wrong else 'results match'}"


def claim_words(verdict: str, ratio: float, low: float, high: float, region: float) -> str:
    """Say a ratio in words that claim no more than its verdict does.

    ``verdict`` is one of a paired comparison's, or why nothing can be claimed ("unpaired").
    """
    match verdict:
        case "FASTER" | "SLOWER":
            return ratio_words(ratio, low, high, region)
        case "SAME":
            same = f"the same within ±{margin_text(region)}"
            return f"{same}, {interval_text(ratio, low, high, region, f' {STEP_TIME}')}"
        case "UNDECIDED":
            return f"undecided, {interval_text(ratio, low, high, region, f' {STEP_TIME}')}"
    claim = f"{number(ratio)} {STEP_TIME}"
    if math.isfinite(low) and math.isfinite(high):
        claim = interval_text(ratio, low, high, region, f" {STEP_TIME}")
    return f"{claim}, {verdict}" if math.isfinite(ratio) else "no ratio"


def _ratio_of(comparison: PairedComparison) -> str:
    ends = comparison.ratio, comparison.low, comparison.high
    return _decided_words(verdict_word(comparison), *ends, region_of(comparison))


def judgement_words(judgement: Judgement, region: float) -> str:
    """Say a judgement's ratio in words."""
    ratio, low, high = (
        math.nan if end is None else end for end in (judgement.ratio, judgement.low, judgement.high)
    )
    return _decided_words(judgement.verdict, ratio, low, high, region)


def _decided_words(verdict: str, ratio: float, low: float, high: float, region: float) -> str:
    """Say "1.2x faster" only with a verdict that says so; else the ratio itself."""
    if verdict in ("FASTER", "SLOWER"):
        return ratio_words(ratio, low, high, region)
    return interval_text(ratio, low, high, region, f" {STEP_TIME}")


def _results(comparison: PairedComparison) -> str:
    """Return a clause that says if the results of both arms are right."""
    if wrong := wrong_arms(comparison):
        return f"WRONG results of {' and '.join(arm for arm, _ in wrong)}"
    references = _references(comparison)
    return f"results match {' and '.join(references)}" if references else "results not checked"


def _references(comparison: PairedComparison) -> list[str]:
    """Return the references that the results of both arms match; empty if one was not checked."""
    numerics = comparison.facts.get("numerics", {}).values()
    if len(numerics) < len(comparison.arms) or not all(map(are_right, numerics)):
        return []
    return sorted({str(fact["reference"]).replace("float", "FP") for fact in numerics})


def standing(comparison: PairedComparison) -> str:
    """Return its p value among the comparisons of its session; empty if it is alone."""
    of = comparison.facts.get("of")
    if of is None:
        return ""
    return f"one of {of} comparisons: p {p_text(comparison.facts['p_holm'])} by Holm's correction"


def p_text(p: float) -> str:
    """Return a p value as a person reads it, without the digits of a very small one."""
    return number(p) if p >= SMALL_P else f"below {SMALL_P:g}"


def remarks(comparison: PairedComparison) -> list[str]:
    """Return sentences that say why the verdict is not clearer, and what would make it so."""
    facts = comparison.facts
    sentences = [sentence(reason) for reason in facts.get("reasons", [])]
    if verdict_word(comparison) == "SAME" and (unseen := _unseen(int(facts.get("pairs", 0)))):
        sentences.append(unseen)
    if disturbance := facts.get("others"):
        sentences.append(sentence(f"{disturbance} while A and B alternated"))
    if note := facts.get("floor_note"):
        sentences.append(sentence(note))
    sentences += rebuilding(facts)
    if facts.get("one_build") and facts.get("builds", 1) == 1:
        sentences.append(f"This holds for the build that was measured: {facts['one_build']}.")
    if comparison.verdict == "UNDECIDED" and facts.get("final"):
        more_s = facts.get("more_s")
        if more_s is not None and math.isfinite(more_s):
            sentences.append(f"Measuring about {duration(math.ceil(more_s))} more should decide.")
    return sentences


def _unseen(pairs: int) -> str:
    """Return a sentence with how rare unnoticed slow blocks are; empty below ``RARE``.

    Of blocks that are slow with probability p, none is among n with probability (1 - p)^n.
    """
    rare = 1 - ALPHA ** (1 / pairs) if pairs else 0.0
    if rare <= RARE:
        return ""
    count = counted(pairs, "pair")
    return f"{count} may have missed slow blocks that are rarer than 1 in {math.floor(1 / rare)}."


def more_text(more_s: float, seconds: float) -> str:
    """Return a clause with how much longer measuring should take, also from the beginning."""
    remaining = duration(math.ceil(more_s)) if math.isfinite(more_s) else "an unknown time"
    return (
        f"measuring about {remaining} more should decide, "
        f"{budget_of(more_s, seconds):,.0f} s in total"
    )


def budget_of(more_s: float, seconds: float) -> float:
    """Return the budget, in whole seconds, of measuring again from the beginning and as long."""
    return float(math.ceil(more_s + seconds)) if math.isfinite(more_s + seconds) else math.nan


def rebuilding(facts: Mapping[str, Any]) -> list[str]:
    """Return a sentence with the reason if each block built its arm again."""
    if not facts.get("rebuilt_each_block"):
        return []
    # Older sessions, which did not distinguish captures, have no reason.
    why = facts.get("rebuilt_because") or "the arms do not fit in memory together"
    return [sentence(f"{why}: each block built its arm again")]


def numerics_lines(comparison: PairedComparison, *, short: bool = False) -> list[str]:
    """Return one line for each arm whose numbers were checked; ``short``: right ones in a clause.

    The reason why numbers are wrong or unknown may be in any clause.
    """
    lines = []
    for arm, check in sorted(comparison.facts.get("numerics", {}).items()):
        against = f" against {check['reference']}" if check["reference"] else ""
        mark = MARKS[are_right(check)]
        line = f"{'AB'[int(arm)]}: numbers {mark}{against}: {check['text']}"
        measures = [
            f"{title} {check[name]:{digits}}"
            for name, title, digits in _MEASURES
            if check.get(name) is not None
        ]
        line += "; " * bool(measures) + ", ".join(measures)
        lines.append(first_clause(line) if short and are_right(check) else line)
    return lines


def memory_words(comparison: PairedComparison, side: str, segments: Sequence[Segment]) -> str:
    """Return the highest memory of arm "A" or "B", without others'; empty where not counted."""
    places, arm = comparison.facts.get("segments", []), "AB".index(side)
    if arm >= len(places) or places[arm] >= len(segments):
        return ""
    ledger = segments[places[arm]].ledger
    if OWN_PEAK not in ledger:
        return ""
    peak = f"own peak memory {size_text(float(ledger[OWN_PEAK]))}"
    others_bytes = float(ledger.get(OTHERS, 0.0))
    return (
        f"{peak}, plus {size_text(others_bytes)} for other configurations" if others_bytes else peak
    )


def duration(seconds: float) -> str:
    """Say seconds as a person does: 8 s, 3 min, 2 h."""
    if seconds < 9.95:
        return f"{seconds:.1f} s" if seconds < 2 else f"{seconds:.0f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
