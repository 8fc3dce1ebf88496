"""The page itself: HTML in one file that needs no other, its charts drawn within it."""

from __future__ import annotations

import base64
import hashlib
import os
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from sessions.numbers import moment, text
from sessions.plain_text import plain
from sessions.storage import open_files
from sessions.tables import Table
from sessions.verdicts.ratios import UNPAIRED
from sessions.verdicts.work import DIFFERENT_MODELS, OTHER_WORK
from workbench import plot_export
from workbench.plots import Run
from workbench.report import SECTIONS, Section
from workbench.report._section import BAD, GOOD, WARNING, Chart, Heading, Part, Script, Words
from workbench.theming.theme import PRINT, Theme

SUFFIX = ".html"
_MOST_ROWS = 15  # rows of a table; further rows are folded
_MOST_COLUMNS, _FEW_ROWS = 9, 4  # a table with more columns and no more rows is turned on its side
_LONG_CELL = 120  # characters
_LEAST_PX = 1.2  # two thirds of a line: finer is seen on a poster, and a page is none
_COLORS = ("window", "surface", "raised", "line", "text", "muted", "accent", GOOD, WARNING, BAD)
# Nothing is loaded and nothing runs; style and pictures lie within the page.
_STYLE_HASH = "HASH"
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
# Words that are highlighted in every table.
_TONES = {
    **dict.fromkeys(("FASTER", "holds", "pass", "effective", "right"), GOOD),
    **dict.fromkeys(("SLOWER", "fail", "failed", "WRONG", "does not hold"), BAD),
    **dict.fromkeys(("UNDECIDED", "undecided", "no effect", "not checked"), WARNING),
    **dict.fromkeys((UNPAIRED, DIFFERENT_MODELS, OTHER_WORK), "muted"),
}


def offered(runs: Sequence[Run]) -> list[Section]:
    """Return the sections that have content for these runs, in the order of a page."""
    return [section for section in SECTIONS.values() if not section.why_not(runs)]


def page(
    runs: Sequence[Run],
    title: str = "",
    notes: str = "",
    sections: Sequence[str] | None = None,
    theme: Theme = PRINT,
) -> str:
    """Return the page of these runs: the named ``sections`` in that order, or all that can be.

    Raises ``ExportError`` for a section that there is not, or that these runs have nothing for.
    """
    plot_export.ensure_application()
    titled = runs[0].titled
    chosen = offered(runs) if sections is None else [_find(name, runs) for name in sections]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        finalize=lambda value: plain(value) if type(value) is str else value,
    )
    drawn: set[object] = set()
    with open_files.reading(*(run.session for run in runs)):
        shown = [
            {
                "name": section.name,
                "title": section.title,
                "parts": [_part(part, theme, titled, drawn) for part in section.made(runs)],
            }
            for section in chosen
        ]
    names = ", ".join(titled(run.title) for run in runs)
    content = environment.get_template("_page.html").render(
        policy=_POLICY,
        title=title or names,
        subtitle=names if title and title != names else "",
        notes=notes,
        sections=shown,
        colors={name: getattr(theme, name) for name in _COLORS},
        footer=f"Made by the GPU optimization workbench, {moment(time.time())}",
    )
    return content.replace(_STYLE_HASH, _hash_of_style(content), 1)


def _hash_of_style(content: str) -> str:
    """Return the digest by which the page's policy allows its own style sheet and no other."""
    style = content.partition("<style>")[2].partition("</style>")[0]
    return base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()


def write(path: str | os.PathLike[str], content: str) -> Path:
    """Write a page completely or not at all; raise ``ExportError``."""
    target = Path(path)
    if target.suffix.lower() != SUFFIX:
        raise plot_export.ExportError(
            f"Cannot write a report to {target.name}: unknown suffix {target.suffix!r}, expected "
            f"{SUFFIX}."
        )
    plot_export.write_atomically(target, content.encode())
    return target


def _find(name: str, runs: Sequence[Run]) -> Section:
    if name not in SECTIONS:
        allowed = ", ".join(SECTIONS)
        raise plot_export.ExportError(f"There is no section {name!r}; expected one of {allowed}.")
    section = SECTIONS[name]
    if why_not := section.why_not(runs):
        raise plot_export.ExportError(f"There is nothing for the section {name}: {why_not}")
    return section


def _part(
    part: Part, theme: Theme, titled: Callable[[str], str], drawn: set[object]
) -> Mapping[str, Any]:
    """Return a part for the template; ``titled`` replaces names in a text by titles.

    ``drawn`` are the charts that the page already has: each is drawn once.
    """
    match part:
        case Heading(words):
            return {"kind": "heading", "text": titled(words)}
        case Words(lines, tone):
            return {"kind": "words", "lines": [titled(line) for line in lines], "tone": tone}
        case Script(words):
            return {"kind": "script", "text": words}
        case Chart():
            return _chart(part, theme, drawn)
        case Table():
            return _table(part, titled)


def _chart(chart: Chart, theme: Theme, drawn: set[object]) -> Mapping[str, Any]:
    plot = plot_export.find_plot(chart.plot, chart.runs, chart.options)
    reason = plot.can_show(chart.runs)
    if reason is not None:
        return {"kind": "words", "lines": [f"{plot.title}: {reason}"], "tone": "muted"}
    if (key := _identity(chart)) in drawn:
        return {"kind": "words", "lines": [f"{plot.title}: above."], "tone": "muted"}
    drawn.add(key)
    options = chart.options
    picture = plot_export.plot_svg(
        plot, chart.runs, theme=theme, options=options, least_px=_LEAST_PX
    )
    return {"kind": "chart", "title": plot.title, "help": plot.help, "picture": _inline(picture)}


def _inline(picture: bytes) -> str:
    """Encode a drawing for ``data:image/svg+xml,``: a quarter shorter than in base 64."""
    line = b" ".join(picture.split()).replace(b'"', b"'")
    return urllib.parse.quote(line, safe="/ :;=,.()-'")


def _identity(chart: Chart) -> object:
    """Return the facts that identify a chart on the page."""
    runs = tuple(
        (run.session.id, run.title, run.comparison, run.segments, *_contents(run))
        for run in chart.runs
    )
    return chart.plot, tuple(sorted(chart.options.items())), runs


def _contents(run: Run) -> Iterator[int]:
    return (id(study.tables) for study in run.session.studies)  # also under another title


def _table(table: Table, titled: Callable[[str], str]) -> Mapping[str, Any]:
    """Return a table for the template: on its side if it is wide and short, long cells folded."""
    table = table.filled()
    if len(table.columns) > _MOST_COLUMNS and len(table.rows) <= _FEW_ROWS:
        table = table.turned()
    numeric = table.numeric()
    columns = [
        {"heading": titled(column.heading), "numeric": right}
        for column, right in zip(table.columns, numeric, strict=True)
    ]
    rows = [
        [
            {**_cell(titled(shown)), "style": "number" if right else _TONES.get(shown, "")}
            for shown, right in zip(map(text, row), numeric, strict=True)
        ]
        for row in table.rows
    ]
    return {
        "kind": "table",
        "title": titled(table.title),
        "columns": columns,
        "rows": rows[:_MOST_ROWS],
        "more": rows[_MOST_ROWS:],
        "notes": [titled(note) for note in table.notes],
    }


def _cell(shown: str) -> Mapping[str, str]:
    """Return a cell: of a long text its first clause, and the rest behind "Details"."""
    first, separator, details = shown.partition("; ")
    if separator and len(shown) > _LONG_CELL:
        return {"text": first, "rest": details}
    return {"text": shown, "rest": ""}
