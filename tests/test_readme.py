"""The README against the project: its commands can be given, and what it points at is there."""

from __future__ import annotations

import pkgutil
import re
import shlex
from pathlib import Path

import pytest

from workbench import cli, commands

ROOT = Path(__file__).parent.parent
TOLD = (ROOT / "README.md").read_text(encoding="utf-8")
NAMES = [each.name for each in pkgutil.iter_modules(commands.__path__) if each.name[0] != "_"]


def command_lines(text: str) -> list[str]:
    """What follows ``workbench`` in blocks of shell, and in the running text."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`([^`]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    words = [shlex.split(line, comments=True) for line in lines if line.startswith("workbench ")]
    return [shlex.join(each[1:]) for each in words if each[1] in NAMES]


def tree(text: str) -> list[str]:
    """Every path of the annotated tree, from the folders that it is indented under."""
    (block,) = re.findall(r"```\n(kernels/.*?)```", text, re.DOTALL)
    found: list[str] = []
    parents: list[tuple[int, str]] = []
    for line in block.splitlines():
        depth = len(line) - len(line.lstrip())
        parents = [(at, folder) for at, folder in parents if at < depth]
        inside = "".join(folder for _, folder in parents)
        name = line.split()[0].rstrip(",")
        found += [inside + each for each in re.findall(r"\w+\.py|\b\w+/(?=[ ,\n]|$)", line)]
        if name.endswith("/"):
            parents.append((depth, name))
    return found


def test_the_readme_shows_every_command():
    assert {line.split()[0] for line in command_lines(TOLD)} == set(NAMES) - {"demo"}
    assert "workbench demo" in TOLD


@pytest.mark.parametrize("line", sorted(set(command_lines(TOLD))))
def test_a_command_of_the_readme_is_understood(line):
    words = [word for word in shlex.split(line) if word != "..."]
    cli._parser(NAMES).parse_args(words)


def test_what_the_readme_points_at_is_there():
    linked = re.findall(r"\]\((?!http)([^)#]+)\)", TOLD)
    named = re.findall(r"\b(?:kernels|models|sessions|tests|workbench)/[\w/]+\.(?:py|png)", TOLD)
    missing = [path for path in {*linked, *named, *tree(TOLD)} if not (ROOT / path).exists()]
    assert not missing and len(linked) > 1 and len(named) > 5 and len(tree(TOLD)) > 25
