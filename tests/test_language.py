"""Budgets for vague identifiers and docstring openers, by package; LANGUAGE.md's rules 2 and 4.

Each budget only falls. Ruff's ``D`` rules check the form of docstrings; this checks the words.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# They do not say what a variable holds or what a function does.
VAGUE_IDENTIFIERS = frozenset(
    "found one each place told whole kept held others asked".split()  # noqa: SIM905
)
# They begin a clause that depends on the title, instead of a sentence with a verb.
VAGUE_OPENERS = frozenset("What Whether How Why Of As That Those By Where".split())  # noqa: SIM905

# Uses of such identifiers, and docstrings that begin with such a word. A file counts for the
# longest path below that contains it.
BUDGETS = {
    "kernels": (0, 0),
    "models": (0, 0),
    "sessions": (0, 0),
    "workbench": (0, 0),
    "workbench/charts": (0, 0),
    "workbench/plots": (0, 0),
    "workbench/runner": (0, 0),
    "workbench/theming": (0, 0),
    "workbench/ui": (0, 0),
    "tests": (3, 0),
    "tests/kernels": (0, 0),
    "tests/models": (0, 0),
}

# Changes that lower a count at the same time need not all edit its line.
TOLERANCE = 0.1
SMALL_CHANGE = 5


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Yield every use of a variable, parameter, attribute or function by its name."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.keyword(arg=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name


def openers(tree: ast.AST) -> Iterator[str]:
    """Yield the first word of every docstring."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and (words := (ast.get_docstring(node) or "").split()):
            yield words[0].rstrip(",:;.")


def vague_words(source: str) -> tuple[int, int]:
    """Return how many identifiers and how many docstring openers of a file are vague."""
    tree = ast.parse(source)
    return (
        sum(name in VAGUE_IDENTIFIERS for name in identifiers(tree)),
        sum(word in VAGUE_OPENERS for word in openers(tree)),
    )


def package_of(path: Path) -> str:
    """Return the longest path in ``BUDGETS`` that contains the file."""
    folders = {str(folder) for folder in path.relative_to(ROOT).parents}
    return max(folders & BUDGETS.keys(), key=len)


def count_by_package() -> dict[str, tuple[int, int]]:
    """Count the vague identifiers and openers of every package."""
    counts = dict.fromkeys(BUDGETS, (0, 0))
    for top in {package.partition("/")[0] for package in BUDGETS}:
        for path in (ROOT / top).rglob("*.py"):
            package = package_of(path)
            names, words = vague_words(path.read_text())
            counts[package] = (counts[package][0] + names, counts[package][1] + words)
    return counts


def violation(kind: str, count: int, budget: int) -> str:
    """Return why the count does not fit the budget; empty if it does."""
    if count > budget:
        return f"{count} {kind}, at most {budget} are allowed: use the words that say what is meant"
    if budget - count > max(SMALL_CHANGE, TOLERANCE * budget):
        return f"{count} {kind}, but the budget is {budget}: lower it to {count}, it only falls"
    return ""


@pytest.mark.parametrize("package", BUDGETS)
def test_vague_words_stay_within_a_budget_that_only_falls(package, counts):
    problems = [
        violation(kind, count, budget)
        for kind, count, budget in zip(
            ("vague identifiers", "vague docstring openers"),
            counts[package],
            BUDGETS[package],
            strict=True,
        )
    ]
    assert not any(problems), f"{package}: {'; '.join(filter(None, problems))}"


@pytest.fixture(scope="module")
def counts() -> dict[str, tuple[int, int]]:
    """Count once for all packages."""
    return count_by_package()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(found):\n    return found", (2, 0)),
        ("for one in rows:\n    print(one.held)", (3, 0)),
        ("def asked():\n    '''Return nothing.'''", (1, 0)),
        ("f(kept=1, **rest)", (1, 0)),
        ("[each for each in rows]", (2, 0)),
        ("'''What found holds.'''\nfoundation = 1", (0, 1)),
        ("class A:\n    '''\n    Whether, or not.\n    '''", (0, 1)),
        ("def f():\n    '''Return what was requested.'''", (0, 0)),
        ("def f():\n    ''''''", (0, 0)),
    ],
)
def test_uses_and_openers_are_counted(source, expected):
    assert vague_words(source) == expected


def test_a_budget_is_refused_above_and_well_below_the_count():
    assert violation("openers", 101, 100).startswith("101 openers, at most 100")
    assert violation("openers", 100, 100) == ""
    assert violation("openers", 90, 100) == ""
    assert violation("openers", 89, 100).endswith("lower it to 89, it only falls")
    assert violation("openers", 0, SMALL_CHANGE) == ""
    assert "lower it to 0" in violation("openers", 0, SMALL_CHANGE + 1)
