"""A number with its noun is in the singular or plural of English."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from sessions.numbers import counted

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "graph", "1 graph"),
        (0, "graph", "0 graphs"),
        (2000, "graph", "2,000 graphs"),
        (1, "backward pass", "1 backward pass"),
        (2, "backward pass", "2 backward passes"),
        (4, "micro-batch", "4 micro-batches"),
        (3, "prefix", "3 prefixes"),
    ],
)
def test_a_noun_is_in_the_plural_unless_there_is_one(count, noun, text):
    assert counted(count, noun) == text


def test_every_noun_that_is_counted_has_a_regular_plural():
    nouns = set()
    for folder in ("sessions", "workbench", "models", "kernels"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "counted":
                    literals = [a.value for a in node.args[1:] if isinstance(a, ast.Constant)]
                    nouns.update(str(value) for value in literals)
    assert len(nouns) > 20
    irregular = re.compile(r"[^aeiou]y$|[^s]s$|(man|child|half|leaf)$")
    assert not [noun for noun in nouns if irregular.search(noun)]
