"""Export a chart of saved sessions as PNG, SVG, PDF or CSV, or a table as Markdown or CSV."""

from __future__ import annotations

import argparse
from pathlib import Path

from sessions.claims import claims_table, newest
from sessions.tables import segments_table
from workbench.commands._command import (
    DONE,
    Command,
    Failed,
    Mistaken,
    answer_written,
    check_output,
    files_of,
    load,
    names,
    runs_of,
    write_text,
)

_TABLE_SUFFIXES = (".md", ".csv")
_TABLES = ("segments", "claims")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.h5")
    what = parser.add_mutually_exclusive_group(required=True)
    plots = files_of("workbench.ui.plots")
    what.add_argument("--plot", metavar="NAME", choices=plots, help=f"one of {', '.join(plots)}")
    what.add_argument("--table", choices=_TABLES, help="of one session: a row each")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    parser.add_argument(
        *("-o", "--output"),
        type=Path,
        required=True,
        metavar="FILE",
        help="what its suffix says: a plot .png .svg .pdf .csv, a table .md .csv",
    )


def _run(arguments: argparse.Namespace) -> int:
    if arguments.table:
        _write_table(arguments.table, arguments.files, arguments.output)
    else:
        _draw(arguments.plot, arguments.files, arguments.output)
    answer_written(arguments, plot=arguments.plot, table=arguments.table)
    return DONE


def _draw(plot: str, paths: list[Path], output: Path) -> None:
    from workbench.ui.export import SUFFIXES, ExportError, export_plot  # Qt: only to draw

    check_output(output, SUFFIXES)
    runs = runs_of([load(path) for path in paths], names(paths))
    try:
        export_plot(plot, runs, output)
    except ExportError as error:
        raise Failed(str(error)) from None


def _write_table(name: str, paths: list[Path], output: Path) -> None:
    check_output(output, _TABLE_SUFFIXES)
    if len(paths) > 1:
        raise Mistaken(
            f"--table takes one session, not {len(paths)}; `workbench compare` sets several "
            "side by side"
        )
    session = load(paths[0])
    if name == "claims":
        rows = list(newest(session).values())
        if not rows:
            raise Mistaken(f"{paths[0]} has no claims; `workbench reproduce` measures them")
        table = claims_table(rows, session.title)
    else:
        table = segments_table(session)
    is_csv = output.suffix.lower() == ".csv"
    write_text(output, table.to_csv() if is_csv else table.to_markdown())


COMMAND = Command(name="export", help=__doc__, arguments=_arguments, run=_run)
