"""The README and the pages: their commands are understood, and their links lead somewhere."""

from __future__ import annotations

import pkgutil
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from workbench import cli, commands

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted([*ROOT.glob("[!.]*/*.md"), *ROOT.glob("[!.]*/pages/*.md")])]
TEXTS = {page.name: page.read_text(encoding="utf-8") for page in PAGES}  # RESULTS.md: the last
NAMES = [module.name for module in pkgutil.iter_modules(commands.__path__) if module.name[0] != "_"]


def command_lines(text: str) -> list[str]:
    """Return what follows ``workbench`` in blocks of shell, and in the running text."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`([^`]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    words = [shlex.split(line, comments=True) for line in lines if line.startswith("workbench ")]
    return [shlex.join(words_of[1:]) for words_of in words if words_of[1] in NAMES]


def tree(text: str) -> list[str]:
    """Every path of the annotated tree, from the folders that it is indented under."""
    (block,) = re.findall(r"```\n(kernels/.*?)```", text, re.DOTALL)
    paths: list[str] = []
    parents: list[tuple[int, str]] = []
    for line in block.splitlines():
        depth = len(line) - len(line.lstrip())
        parents = [(at, folder) for at, folder in parents if at < depth]
        inside = "".join(folder for _, folder in parents)
        name = line.split()[0].rstrip(",")
        paths += [
            inside + name_found for name_found in re.findall(r"\w+\.py|\b\w+/(?=[ ,\n]|$)", line)
        ]
        if name.endswith("/"):
            parents.append((depth, name))
    return paths


def test_the_pages_show_every_command():
    assert {line.split()[0] for line in command_lines(TEXTS["COMMANDS.md"])} == set(NAMES)
    assert "workbench demo" in TEXTS["README.md"]


def test_the_readme_counts_the_claims_as_the_table_of_results_does():
    results = (ROOT / "workbench" / "pages" / "RESULTS.md").read_text(encoding="utf-8")
    table = results.split("| claim | document | measured | |\n")[1].split("\n\n")[0]
    cells = [line.strip("| ").split("|")[-1] for line in table.splitlines()[1:]]
    words = (re.sub(r"\(.*\)", "", word).strip() for cell in cells for word in cell.split("/"))
    count = Counter(words)
    assert count.keys() == {"holds", "does not hold", "undecided"}
    counts = f"{count['holds']} hold, {count['does not hold']} do not hold"
    counts += f", {count['undecided']} undecided"
    assert counts in TEXTS["README.md"]


def test_the_readme_is_short():
    assert len(TEXTS["README.md"].splitlines()) <= 120


def of_pages(extract: Callable[[str], Iterable[str]]) -> list[str]:
    return sorted({item for page in PAGES for item in extract(page.read_text(encoding="utf-8"))})


@pytest.mark.parametrize("line", of_pages(command_lines))
def test_a_command_that_is_told_is_understood(line):
    words = [word for word in shlex.split(line) if word != "..."]
    own, _ = cli._split(words)
    cli._parser().parse_args(own)


def files_named(text: str) -> list[str]:
    return re.findall(r"\b(?:kernels|models|sessions|tests|workbench)/[\w/]+\.(?:py|png)", text)


def test_the_files_that_are_named_are_there():
    named = {*of_pages(files_named), *tree(TEXTS["ARCHITECTURE.md"])}
    assert not [path for path in named if not (ROOT / path).exists()]
    assert len(of_pages(files_named)) > 5 and len(tree(TEXTS["ARCHITECTURE.md"])) > 25


def anchors(page: Path) -> set[str]:
    """Return what a link can name in a page: its headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_pages_and_headings_that_are_there(page):
    links = re.findall(r"\]\((?!http)([^)]+)\)", page.read_text(encoding="utf-8"))
    assert links
    for link in links:
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not heading or heading in anchors(target), link
