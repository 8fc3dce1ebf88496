"""Words of a verdict: they claim no more than it decided."""

from __future__ import annotations

import pytest

from sessions.model import Judgement
from sessions.verdicts.verdict_words import claim_words, judgement_words

REGION = 0.01


@pytest.mark.parametrize(
    ("verdict", "ends", "words"),
    [
        ("FASTER", (0.8, 0.75, 0.85), "1.25x faster (95 % CI 1.18 to 1.33)"),
        ("SLOWER", (1.25, 1.2, 1.3), "1.25x slower (95 % CI 1.20 to 1.30)"),
        ("UNDECIDED", (0.86, 0.74, 0.994), "0.86 x step time (95 % CI 0.74 to 0.994)"),
        ("SAME", (0.997, 0.995, 0.999), "0.997 x step time (95 % CI 0.995 to 0.999)"),
    ],
)
def test_only_a_verdict_of_faster_or_slower_is_called_so(verdict, ends, words):
    judgement = Judgement(verdict=verdict, pairs=9, ratio=ends[0], low=ends[1], high=ends[2])
    assert judgement_words(judgement, REGION) == words
    claim = claim_words(verdict, *ends, REGION)
    assert claim.endswith(words)
    assert ("faster" in claim or "slower" in claim) == (verdict in ("FASTER", "SLOWER"))
