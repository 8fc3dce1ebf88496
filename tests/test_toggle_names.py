"""One toggle, one file: how often other files name a toggle, with budgets that only fall.

A toggle's memory, prediction, fixes, conflicts and presets are fields of its ``Toggle``. A file
that names a toggle must change when that toggle goes, so others ask for traits instead.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

import kernels
import models
from workbench.runner.toggles import all_toggles

ROOT = Path(__file__).parents[1]
TOGGLES = "workbench/runner/toggles"

# A file counts for the longest path that contains it.
BUDGETS = {
    "kernels": 0,
    "models": 2,  # operators by the names of their implementations
    "sessions": 12,  # suggestions from a saved session, and a list for sessions that have none
    "workbench": 4,  # the window's demonstration
    "workbench/claims": 32,  # configurations that documents name
    "workbench/runner": 0,
    TOGGLES: 41,  # choices that a fix makes, and toggles that need another
}

# Changes that lower a count at the same time need not all edit its line.
TOLERANCE = 0.1
SMALL_CHANGE = 5

# Names that also are implementations, phases, kinds of failures, or arguments of an estimate; and
# settings of a script.
OTHER_MEANINGS = frozenset(
    ("triton", "compile", "precision", "checkpointing", "quantization", "sharding")
) | {"allocator", "cudnn_benchmark"}


def names_with_other_meanings() -> set[str]:
    """Return the toggles' names that are names of operators or of a model's fields, too."""
    fields = {field.name for family in models.FAMILIES.values() for field in family.fields()}
    return OTHER_MEANINGS | (all_toggles().keys() & (kernels.OPS.keys() | fields))


def constants(node: ast.AST) -> set[str]:
    """Return the strings in an expression."""
    return {
        inner.value
        for inner in ast.walk(node)
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str)
    }


def named(source: str, options: Mapping[str, Collection[str]]) -> Iterator[tuple[int, str]]:
    """Yield line and name of every toggle that a file names.

    A name with other meanings counts in a lookup of toggles and as a key beside its options.
    """
    ambiguous = names_with_other_meanings()
    surely: set[ast.AST] = set()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="option") | ast.Name(id="Option"), args=[key, *_]
            ):
                surely.add(key)
            case ast.Call(
                func=ast.Attribute(attr="get", value=ast.Attribute(attr="toggles")), args=[key, *_]
            ):
                surely.add(key)
            case ast.Subscript(value=ast.Attribute(attr="toggles"), slice=key):
                surely.add(key)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and constants(value) & {
                        *options.get(key.value, ())
                    }:
                        surely.add(key)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and node.value in options
            and (node in surely or node.value not in ambiguous)
        ):
            yield node.lineno, node.value


def count_by_package() -> dict[str, list[str]]:
    """Return the places where toggles are named outside of their files."""
    options = {name: toggle.options for name, toggle in all_toggles().items()}
    places: dict[str, list[str]] = {package: [] for package in BUDGETS}
    for top in {package.partition("/")[0] for package in BUDGETS}:
        for path in sorted((ROOT / top).rglob("*.py")):
            folders = {str(folder) for folder in path.relative_to(ROOT).parents}
            package = max(folders & BUDGETS.keys(), key=len)
            places[package] += [
                f"{path.relative_to(ROOT)}:{line} {name}"
                for line, name in named(path.read_text(), options)
                if path != ROOT / TOGGLES / f"{name}.py"
            ]
    return places


def violation(kind: str, count: int, budget: int) -> str:
    """Return why the count does not fit the budget; empty if it does."""
    if count > budget:
        return f"{count} {kind}, at most {budget} are allowed: use the words that say what is meant"
    if budget - count > max(SMALL_CHANGE, TOLERANCE * budget):
        return f"{count} {kind}, but the budget is {budget}: lower it to {count}, it only falls"
    return ""


def test_toggles_are_named_in_their_files():
    places = count_by_package()
    for package, budget in BUDGETS.items():
        problem = violation("names of toggles", len(places[package]), budget)
        assert not problem, "\n".join([f"{package}: {problem}", *places[package]])


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('situation.option("compile") == "off"', ["compile"]),
        ('configuration.toggles.get("triton", "off")', ["triton"]),
        ('configuration.toggles["precision"]', ["precision"]),
        ('Blocked("why", "Switch it off.", {"compile": "off"})', ["compile"]),
        ('{"compile": "default" if mode else "off"}', ["compile"]),
        ('if name == "cuda_graphs": pass', ["cuda_graphs"]),
        ('Failure(kind="compile", sentence="No.")', []),
        ('kernels.OPS["attention"].unavailable("triton", "cuda")', []),
        ('{"triton": Implementation(call)}', []),
        ('"""A docstring about cuda_graphs."""', []),
    ],
)
def test_a_name_counts_where_it_means_a_toggle(source, names):
    options = {name: toggle.options for name, toggle in all_toggles().items()}
    assert [name for _, name in named(source, options)] == names


def test_a_budget_is_refused_above_and_well_below_the_count():
    assert violation("openers", 101, 100).startswith("101 openers, at most 100")
    assert violation("openers", 100, 100) == ""
    assert violation("openers", 90, 100) == ""
    assert violation("openers", 89, 100).endswith("lower it to 89, it only falls")
    assert violation("openers", 0, SMALL_CHANGE) == ""
    assert "lower it to 0" in violation("openers", 0, SMALL_CHANGE + 1)
