"""Words of a verdict: they claim no more than it decided."""

from __future__ import annotations

import pytest

from sessions.model import Judgement, PairedComparison
from sessions.plain_text import sentence
from sessions.verdicts.verdict_tables import verdicts_table
from sessions.verdicts.verdict_words import claim_words, judgement_words, ratio_line, remarks

REGION = 0.01


@pytest.mark.parametrize(
    ("verdict", "ends", "words"),
    [
        ("FASTER", (0.8, 0.75, 0.85), "1.25x faster (95 % interval 1.18 to 1.33)"),
        ("SLOWER", (1.25, 1.2, 1.3), "1.25x slower (95 % interval 1.20 to 1.30)"),
        ("UNDECIDED", (0.86, 0.74, 0.994), "0.86 x step time (95 % interval 0.74 to 0.994)"),
        ("SAME", (0.997, 0.995, 0.999), "0.997 x step time (95 % interval 0.995 to 0.999)"),
    ],
)
def test_only_a_verdict_of_faster_or_slower_is_called_so(verdict, ends, words):
    judgement = Judgement(verdict=verdict, pairs=9, ratio=ends[0], low=ends[1], high=ends[2])
    assert judgement_words(judgement, REGION) == words
    claim = claim_words(verdict, *ends, REGION)
    assert claim.endswith(words)
    assert ("faster" in claim or "slower" in claim) == (verdict in ("FASTER", "SLOWER"))


@pytest.mark.parametrize(("pairs", "rarer"), [(8, "1 in 3"), (20, "1 in 7"), (60, "")])
def test_same_says_how_rare_the_slow_blocks_are_that_so_few_pairs_miss(pairs, rarer):
    same = PairedComparison(
        arms=["A", "B"], order=[], medians_ms=[], ratio=1.0, low=0.999, high=1.001, verdict="SAME",
        facts={"pairs": pairs},
    )  # fmt: skip
    (sentence,) = remarks(same) or [""]
    assert rarer in sentence and bool(sentence) is bool(rarer)
    share = 1 / int(rarer.removeprefix("1 in ") or 19)
    assert (1 - share) ** pairs < 0.1  # such blocks are rarely all missed


@pytest.mark.parametrize(
    ("facts", "voids", "pairs"),
    [({}, [], 2), ({}, ["", "", "recompiled", ""], 1), ({"pairs": 1}, [], 1)],
)
def test_sentence_and_table_count_the_same_pairs(facts, voids, pairs):
    comparison = PairedComparison(
        arms=["a", "b"],
        order=[0, 1, 1, 0],
        medians_ms=[10.0, 9.0, 9.0, 10.0],
        ratio=0.9,
        low=0.8,
        high=0.95,
        verdict="FASTER",
        facts=facts,
        voids=voids,
    )
    table = verdicts_table([comparison])
    assert table.rows[0][table.column("pairs")] == pairs
    assert ratio_line(comparison).endswith(f", {pairs} pair{'s' * (pairs > 1)}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("memory is short", "Memory is short."),
        ("Start a new runner.", "Start a new runner."),
        ("did it help?", "Did it help?"),
    ],
)
def test_a_clause_becomes_a_sentence_and_a_sentence_stays_one(text, expected):
    assert sentence(text) == expected
