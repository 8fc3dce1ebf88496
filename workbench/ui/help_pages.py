"""The pages of the Help menu, as Markdown; most are sections of ``workbench/pages``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "pages"


@dataclass(frozen=True)
class Page:
    """Help page: its name, its title, and the function that returns its Markdown."""

    name: str
    title: str
    markdown: Callable[[], str]


def file_text(name: str) -> str:
    """Return a page of the package without its link back to the README."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    return re.sub(r"^Part of the \[.*\n+", "", text, flags=re.MULTILINE)


def section(name: str, heading: str, title: str) -> str:
    """Return a section of a page under another title; raise ``KeyError`` if there is none."""
    parts = re.split(r"^## (?:\d+\. )?", file_text(name), flags=re.MULTILINE)
    for part in parts[1:]:
        first, _, text = part.partition("\n")
        if first == heading:
            return f"# {title}\n{text}"
    raise KeyError(f"{name} has no section {heading!r}")


def plots_text() -> str:
    """Return the page on plots: the help text of every plot."""
    from workbench.plots import PLOTS

    parts = [section("USAGE.md", "Watch", "How to read each plot")]
    for plot in sorted(PLOTS.values(), key=lambda plot: plot.title):
        parts.append(f"### {plot.title}\n\n{plot.help}\n")
    return "\n".join(parts)


PAGES = (
    Page("usage", "Usage", lambda: file_text("USAGE.md")),
    Page("verdict", "What a verdict is", lambda: section("USAGE.md", "Judge", "What a verdict is")),
    Page("plots", "How to read each plot", plots_text),
    Page("models", "Your own model", lambda: file_text("USER_MODELS.md")),
    Page("gpus", "Several GPUs", lambda: section("USAGE.md", "Several GPUs", "Several GPUs")),
    Page("commands", "Commands", lambda: file_text("COMMANDS.md")),
)
FILES = {"USAGE.md": "usage", "USER_MODELS.md": "models", "COMMANDS.md": "commands"}
