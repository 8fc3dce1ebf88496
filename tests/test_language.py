"""No vague identifiers and docstring openers in the project; LANGUAGE.md's rules 2 and 4.

Ruff's ``D`` rules check the form of docstrings; this checks the words.
"""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("kernels", "models", "sessions", "workbench", "tests")

# They do not say what a variable holds or what a function does.
VAGUE_IDENTIFIERS = frozenset(
    "found one each place told whole kept held others asked".split()  # noqa: SIM905
)
# They begin a clause that depends on the title, instead of a sentence with a verb.
VAGUE_OPENERS = frozenset("What Whether How Why Of As That Those By Where".split())  # noqa: SIM905
# A comment that begins with one of them continues a sentence that only its author knows.
FRAGMENT = re.compile(r"(?:^|\s)# (of|that|which|whose|nor|else)\b", re.IGNORECASE)

# What texts count. For a count of 1, the plural is wrong: ``sessions.numbers.counted`` writes both.
COUNTED_NOUNS = frozenset(
    """
    allocations arms blocks builds bytes calls cells channels characters chunks columns
    comparisons components configurations devices elements events experts failures fields files
    graphs groups heads kernels launches layers micro-batches mixers modules names numbers options
    orders pairs parameters passes points positions processes prompts queries ranks recompiles
    results rounds rows runs samples segments sends sequences sessions sizes slices stages steps
    tables tensors times toggles tokens values visits
    """.split()  # noqa: SIM905
)
# Counts before a plural that are never 1, such as those that a check before the text excludes.
PLURAL_BUDGETS = {"kernels": 7, "models": 15, "sessions": 29, "workbench": 75}


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of every use of a variable, parameter, attribute or function."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Name(id=name, lineno=line)
                | ast.Attribute(attr=name, lineno=line)
                | ast.arg(arg=name, lineno=line)
                | ast.FunctionDef(name=name, lineno=line)
                | ast.AsyncFunctionDef(name=name, lineno=line)
            ):
                yield line, name
            case ast.keyword(arg=str(name), lineno=line):
                yield line, name


def openers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line of the definition and first word of every docstring."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and (words := (ast.get_docstring(node) or "").split()):
            yield getattr(node, "lineno", 1), words[0].rstrip(",:;.")


def vague_words(source: str) -> list[str]:
    """Return line and word of every vague identifier and docstring opener of a file."""
    tree = ast.parse(source)
    names = [use for use in identifiers(tree) if use[1] in VAGUE_IDENTIFIERS]
    words = [use for use in openers(tree) if use[1] in VAGUE_OPENERS]
    return [f"{line}: {word}" for line, word in sorted(names + words)]


def comment_fragments(source: str) -> list[str]:
    """Return line and first word of every comment that begins with a fragment's word."""
    lines = ["", *source.splitlines()]
    return [
        f"{number}: {match[1]}"
        for number, (before, line) in enumerate(itertools.pairwise(lines), 1)
        if (match := FRAGMENT.search(line)) and not before.lstrip().startswith("#")
    ]


def plural_counts(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and words of every computed count before a plural; capitals are limits above 1."""
    for node in ast.walk(ast.parse(source)):
        values = node.values if isinstance(node, ast.JoinedStr) else []
        for value, after in itertools.pairwise(values):
            if not (isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant)):
                continue
            expression = ast.unparse(value.value)
            words = re.match(r" (?:([a-z-]+) )?([a-z-]+)", str(after.value))
            if words is None or expression.rpartition(".")[2].isupper() or "counted(" in expression:
                continue
            if {words[1], words[2]} & COUNTED_NOUNS:
                yield value.lineno, f"{{{expression}}}{words[0]}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_identifier_and_no_docstring_begins_vaguely(folder):
    problems = [
        f"{path.relative_to(ROOT)}:{problem}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for problem in vague_words(path.read_text())
    ]
    assert not problems, "use words that say what is meant:\n" + "\n".join(problems)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(found):\n    return found", ["1: found", "2: found"]),
        ("for one in rows:\n    print(one.held)", ["1: one", "2: held", "2: one"]),
        ("def asked():\n    '''Return nothing.'''", ["1: asked"]),
        ("f(kept=1, **rest)", ["1: kept"]),
        ("[each for each in rows]", ["1: each", "1: each"]),
        ("'''What found holds.'''\nfoundation = 1", ["1: What"]),
        ("class A:\n    '''\n    Whether, or not.\n    '''", ["1: Whether"]),
        ("def f():\n    '''Return what was requested.'''", []),
        ("def f():\n    ''''''", []),
    ],
)
def test_vague_words_are_found(source, expected):
    assert vague_words(source) == expected


@pytest.mark.parametrize("package", PLURAL_BUDGETS)
def test_no_comment_begins_as_a_fragment(package):
    problems = [
        f"{path.relative_to(ROOT)}:{problem}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for problem in comment_fragments(path.read_text())
    ]
    assert not problems, "say what the name holds, or write a sentence:\n" + "\n".join(problems)


def test_fragments_are_seen_where_a_comment_begins():
    source = "a = 1  # of a step\n# Which ends.\nb = 2  # steps of a run\n# Two lines\n# of text"
    assert comment_fragments(source) == ["1: of", "2: Which"]


@pytest.mark.parametrize("package", PLURAL_BUDGETS)
def test_a_count_that_may_be_1_has_a_singular(package):
    counts = [
        f"{path.relative_to(ROOT)}:{line}: {words}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, words in plural_counts(path.read_text())
    ]
    budget = PLURAL_BUDGETS[package]
    assert len(counts) <= budget, "use counted(count, noun):\n" + "\n".join(counts)
    assert len(counts) > budget - 5, f"lower the budget of {package} to {len(counts)}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("f'{n} blocks are too few'", ["{n} blocks are"]),
        ("f'{len(x):,} steady steps'", ["{len(x)} steady steps"]),
        ("f'only {n} ' 'ranks'", ["{n} ranks"]),
        ("f'{MOST} steps, {counted(n, \"step\")} and {name} has no calls'", []),
    ],
)
def test_plurals_after_counts_are_seen(source, expected):
    assert [words for _, words in plural_counts(source)] == expected
