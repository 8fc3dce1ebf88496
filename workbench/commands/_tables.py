"""Tables on standard output: aligned in a terminal, Markdown on request and for programs."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Literal

from sessions.model import Evidence
from sessions.numbers import text
from sessions.plain_text import first_clause
from sessions.tables import Table

OPTION, HELP = "--markdown", "print tables as Markdown; the default if the output is not a terminal"
_MARKDOWN: ContextVar[bool] = ContextVar("markdown", default=False)
_MOST_ROWS = 6  # most rows of a table that is transposed if its columns do not fit
_GAP = 2  # spaces between columns
_RULE = "    \n    \n -- \n    \n    \n    \n    \n    \n"  # a line of dashes below the headings
_AUTOMATIC = ("auto", "off")  # options that nobody chose
_EXPECTED = ("effective", "as default")


@contextlib.contextmanager
def as_markdown(requested: bool) -> Iterator[None]:
    """Print tables as Markdown inside the block if that is requested."""
    token = _MARKDOWN.set(requested)
    try:
        yield
    finally:
        _MARKDOWN.reset(token)


def render(table: Table) -> str:
    """Return the table as text for standard output."""
    if _MARKDOWN.get() or sys.stdout is None or not sys.stdout.isatty():
        return table.to_markdown()
    return aligned(table, shutil.get_terminal_size().columns)


def aligned(table: Table, width: int) -> str:
    """Return the table in aligned columns that fit into ``width`` characters.

    Columns without any value are left out. A table that is too wide and has few rows is transposed:
    it has a line for each column. Other cells that are too wide take several lines.
    """
    filled = table.filled()
    rows, right = _texts(filled), filled.numeric()
    if _natural_width(rows) > width and len(table.rows) <= _MOST_ROWS < len(filled.columns):
        filled = filled.turned()
        rows, right = _texts(filled), [False, *[True] * len(table.rows)]
    return "\n".join([table.title, "", _grid(rows, right, width), *table.notes, ""])


def evidence_lines(rows: Sequence[Evidence], verbose: bool, prefix: str = "") -> list[str]:
    """Return a line for each row of evidence, with all details if ``verbose``.

    Otherwise the line of an option that works as it should has the first clause, and such a default
    has no line. The reason why an option does not work may be in any clause.
    """
    lines = []
    for row in rows:
        is_short = not verbose and row.status in _EXPECTED
        if is_short and row.requested in _AUTOMATIC:
            continue
        evidence = first_clause(row.text) if is_short else row.text
        lines.append(f"{prefix}{row.toggle}={row.requested}: {row.status}: {evidence}")
    return lines


def _texts(table: Table) -> list[list[str]]:
    """Return headings and cells as rows of lines."""
    headings = [column.heading for column in table.columns]
    return [headings, *([" ".join(text(cell).split()) for cell in row] for row in table.rows)]


def _natural_width(rows: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) + _GAP for column in zip(*rows, strict=True)) - _GAP


def _grid(rows: Sequence[Sequence[str]], right: Sequence[bool], width: int) -> str:
    """Return rows in columns, the first row being the headings; ``right``: aligned to there."""
    from rich.box import Box
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=Box(_RULE, ascii=True), show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for (heading, *cells), is_right in zip(zip(*rows, strict=True), right, strict=True):
        least = max(map(len, cells), default=0) if is_right else None  # no number is broken
        justify: Literal["left", "right"] = "right" if is_right else "left"
        grid.add_column(Text(heading), justify=justify, min_width=least, overflow="fold")
    for row in rows[1:]:
        grid.add_row(*map(Text, row))
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None, force_terminal=False).print(grid)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())
