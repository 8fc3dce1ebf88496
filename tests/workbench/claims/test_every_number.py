"""Every number of the five documents has a claim, or a stated reason why it has none.

The documents are copied to ``documents/``. Code is no claim, but its comments are read, and so is
what the documents print as output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.claims import documents

FOLDER = Path(__file__).parent / "documents"
# A number that is no part of a name (FP16, H100, Mamba-2, B4_S128, v0.2.0).
NUMBER = re.compile(r"(?<![\w.])(?<![A-Za-z]-)\d+(?:[.,]\d+)*")
NUMBERING = re.compile(r"^\s*(?:#+\s+)?(?:Step )?\d+[.:]\s")


def lines(text: str) -> Iterator[tuple[int, str]]:
    """Each line of the document's prose, tables and outputs, and the comments of its code."""
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code and line.strip() != "```"
        elif code:
            _, mark, comment = line.partition("# ")
            yield number, comment if mark else ""
        else:
            yield number, NUMBERING.sub("", line)


def uncovered(text: str, quotes: list[str]) -> list[str]:
    """Return the numbers that no quote covers, with their lines."""
    numbers = []
    for number, line in lines(text):
        covered = {
            column
            for quote in quotes
            for start in occurrences(line, quote)
            for column in range(start, start + len(quote))
        }
        numbers += [
            f"line {number}: {match[0]} in {line.strip()!r}"
            for match in NUMBER.finditer(line)
            if match.start() not in covered
        ]
    return numbers


def occurrences(line: str, quote: str) -> Iterator[int]:
    start = line.find(quote)
    while start >= 0:
        yield start
        start = line.find(quote, start + 1)


def quotes_of(document) -> list[str]:
    claimed = [q for e in document.experiments for c in e.claims for q in c.quotes]
    return claimed + [omission.quote for omission in document.omissions]


@pytest.mark.parametrize("name", documents())
def test_every_number_of_a_document_has_a_claim_or_a_stated_reason(name):
    text = (FOLDER / f"{name}.md").read_text()
    assert not uncovered(text, quotes_of(documents()[name]))


@pytest.mark.parametrize("name", documents())
def test_every_quote_is_the_documents_own_and_holds_a_number(name):
    document = documents()[name]
    every = [line for _, line in lines((FOLDER / f"{name}.md").read_text())]
    for quote in quotes_of(document):
        assert any(quote in line for line in every), quote
        assert re.search(r"\d|O\(n\)|Unlimited|Consistent", quote), quote
    for omission in document.omissions:
        assert omission.reason and omission.reason[0].islower() and omission.reason[-1] != "."


def test_a_number_without_a_claim_is_found():
    text = "# 1. Title\nFaster: 1.5-2x\n```python\nx = 3  # 4 heads\n```\n```\n7 ms\n```\nFP16"
    assert [line.split(" in ")[0] for line in uncovered(text, [])] == [
        "line 2: 1.5",
        "line 2: 2",
        "line 4: 4",
        "line 7: 7",
    ]
    assert not uncovered(text, ["1.5-2x", "4 heads", "7 ms"])
