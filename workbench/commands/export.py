"""Export a chart as PNG, SVG, PDF or CSV, a table as Markdown or CSV, or runs of a tracker."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from sessions.exports import EXPORTS, exportable
from sessions.numbers import counted
from sessions.tables import Table, comparison_table, differences_table
from sessions.verdicts.comparison import compare
from workbench import plugins, trackers
from workbench.commands._arguments import positive_int
from workbench.commands._command import (
    DONE,
    Command,
    Failed,
    Mistaken,
    answer,
    answer_json,
    answer_written,
    check_output,
    load,
    load_together,
    names,
    runs_of,
    write_text,
)

_TABLE_SUFFIXES = (".md", ".csv")
# Tables of two to ten files, the first of which is what ratios refer to.
_TOGETHER = {
    "comparison": "several files: the longest segment of each, and its ratio to the first",
    "differences": "several files: what differs in their configurations and environments",
}


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.h5")
    selection = parser.add_mutually_exclusive_group(required=True)
    plots = plugins.names("workbench.plots", "plots")
    selection.add_argument(
        "--plot", metavar="NAME", choices=plots, help=f"one of {', '.join(plots)}"
    )
    selection.add_argument(
        "--table", metavar="NAME", help=f"one of {', '.join([*EXPORTS, *_TOGETHER])}"
    )
    selection.add_argument(
        "--format",
        choices=sorted(trackers.FORMATS),
        help="every step as an offline run of that tracker, in the folder of -o",
    )
    selection.add_argument(
        "--list", action="store_true", help="list the tables of the files and their contents"
    )
    parser.add_argument(
        "--number",
        type=positive_int,
        metavar="N",
        help="the N-th table of that name (a session may have several profiles); default: all of "
        "them, but a CSV file holds only one",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=CHOICE",
        help="an option of the plot, as in the window: --option profile=2, metric=load ...; for "
        "an unknown one, the error lists all options",
    )
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    parser.add_argument(
        *("-o", "--output"),
        type=Path,
        metavar="FILE",
        help="the file; its suffix sets the format: plots .png .svg .pdf .csv, tables .md .csv; "
        "without it, a table is printed",
    )


def _run(arguments: argparse.Namespace) -> int:
    if arguments.number is not None and not arguments.table:
        raise Mistaken("--number chooses among tables of one name; name one by --table")
    if arguments.option and not arguments.plot:
        raise Mistaken("--option chooses how a plot is drawn; name one by --plot")
    if arguments.list:
        if arguments.output is not None:
            raise Mistaken("--list prints its answer; leave out -o")
        _list(arguments)
    elif arguments.format:
        _track(arguments)
    elif arguments.table:
        _write_table(arguments)
    else:
        if arguments.output is None:
            raise Mistaken("a plot needs -o FILE, whose suffix sets the format")
        _draw(arguments)
        answer_written(arguments, plot=arguments.plot, table=None)
    return DONE


def _draw(arguments: argparse.Namespace) -> None:
    from workbench import plot_export

    paths, options = arguments.files, {}
    check_output(arguments.output, plot_export.SUFFIXES)
    for text in arguments.option:
        name, equals, choice = text.partition("=")
        if not equals:
            raise Mistaken(f"--option {text}: expected NAME=CHOICE")
        options[name.strip()] = choice.strip()
    runs = runs_of([load(path) for path in paths], names(paths))
    try:
        plot_export.export_plot(arguments.plot, runs, arguments.output, options=options)
    except plot_export.Unwritable as error:
        raise Failed(str(error)) from None
    except plot_export.ExportError as error:
        raise Mistaken(str(error)) from None


def _track(arguments: argparse.Namespace) -> None:
    folder = arguments.output
    if folder is None:
        raise Mistaken(f"--format {arguments.format} needs -o FOLDER")
    count = 0
    try:
        for path, title in zip(arguments.files, names(arguments.files), strict=True):
            count += trackers.export(load(path), title, arguments.format, folder)
    except trackers.MissingLibrary as error:
        raise Mistaken(str(error)) from None
    except OSError as error:
        raise Failed(f"{folder} cannot be written: {error.strerror or error}") from None
    if arguments.json:
        answer_json({"reason": "done", "folder": str(folder), "runs": count})
    else:
        answer(f"{folder}: {counted(count, 'run')}")


def _write_table(arguments: argparse.Namespace) -> None:
    name, output = arguments.table, arguments.output
    if output is not None:
        check_output(output, _TABLE_SUFFIXES)
    tables = _tables(arguments.files, name)
    if arguments.number is not None:
        tables = [_chosen(tables, name, arguments.number)]
    is_csv = output is not None and output.suffix.lower() == ".csv"
    if is_csv and len(tables) > 1:
        raise Mistaken(f"a CSV file holds one table; choose one by --number: {_numbered(tables)}")
    text = tables[0].to_csv() if is_csv else "\n".join(table.to_markdown() for table in tables)
    if output is not None:
        write_text(output, text)
        answer_written(arguments, plot=None, table=name)
    elif arguments.json:
        answer_json(
            {"reason": "done", "table": name, "tables": [table.to_data() for table in tables]}
        )
    else:
        answer(text)


def _tables(paths: list[Path], name: str) -> list[Table]:
    """Return the tables of that name, at least one; raise ``Mistaken`` if there is none."""
    if name not in EXPORTS and name not in _TOGETHER:
        raise Mistaken(f"unknown table {name!r}; {_offered(paths)}")
    if name in _TOGETHER:
        if len(paths) < 2:
            raise Mistaken(f"--table {name} compares several sessions; name two or more")
        return [_of_several(paths, name)]
    if len(paths) > 1:
        raise Mistaken(
            f"--table {name} needs one session, not {len(paths)}; {' and '.join(_TOGETHER)} "
            "compare several"
        )
    tables = EXPORTS[name].tables(load(paths[0]))
    if not tables:
        export = EXPORTS[name]
        raise Mistaken(
            f"{paths[0]} has no {name} ({export.help}), which `workbench {export.by}` measures; "
            f"{_offered(paths)}"
        )
    return tables


def _of_several(paths: list[Path], name: str) -> Table:
    from sessions.storage import hdf5

    sessions = load_together(paths)
    with hdf5.held_open(sessions):
        comparison = compare(sessions)
    return comparison_table(comparison) if name == "comparison" else differences_table(comparison)


def _chosen(tables: Sequence[Table], name: str, number: int) -> Table:
    if number > len(tables):
        raise Mistaken(
            f"there is no table {name} with number {number}; there are: {_numbered(tables)}"
        )
    return tables[number - 1]


def _numbered(tables: Sequence[Table]) -> str:
    return ", ".join(f"{number} {table.title!r}" for number, table in enumerate(tables, 1))


def _offered(paths: list[Path]) -> str:
    """Return the tables that the files have, as a clause."""
    if len(paths) > 1:
        return f"for several files there are {', '.join(_TOGETHER)}"
    return f"{paths[0]} has: {', '.join(exportable(load(paths[0]))) or 'none'}"


def _list(arguments: argparse.Namespace) -> None:
    tables_by_file = {str(path): exportable(load(path)) for path in arguments.files}
    if arguments.json:
        data = {
            path: {
                name: [{"title": table.title, "rows": len(table.rows)} for table in tables]
                for name, tables in named.items()
            }
            for path, named in tables_by_file.items()
        }
        answer_json({"reason": "done", "tables": data})
        return
    for path, named in tables_by_file.items():
        answer(f"{path}:" if named else f"{path}: no tables, because nothing ran in this session")
        for name, tables in named.items():
            answer(f"  {name:<15}{EXPORTS[name].help}")
            for number, table in enumerate(tables, 1):
                which = f"{number}  " if len(tables) > 1 else ""
                answer(f"{'':<17}{which}{_one_line(table)}")
    if len(tables_by_file) > 1:
        answer("\n".join(f"{name:<17}{text}" for name, text in _TOGETHER.items()))


def _one_line(table: Table) -> str:
    rows = len(table.rows)
    return f"{' '.join(table.title.split())}: {counted(rows, 'row')}"


COMMAND = Command(name="export", help=__doc__, arguments=_arguments, run=_run)
