"""Show the step time over commits from a folder of sessions: ratios, intervals and steps."""

from __future__ import annotations

import argparse
from pathlib import Path

from sessions.errors import SessionError
from sessions.history import history, history_table
from sessions.numbers import counted
from workbench.commands._command import (
    DONE,
    Command,
    Failed,
    Mistaken,
    answer,
    answer_json,
    check_output,
    load,
    names,
    print_status,
    runs_of,
    write_text,
)
from workbench.commands._tables import render

_TABLE_SUFFIXES = (".md",)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="folder of .h5 files, as written by check -o"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write the chart (.svg .png .pdf .csv) or the table (.md)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _run(arguments: argparse.Namespace) -> int:
    from workbench import plot_export

    output = arguments.output
    if output is not None:
        check_output(output, (*plot_export.SUFFIXES, *_TABLE_SUFFIXES))
    try:
        files = sorted(path for path in arguments.folder.iterdir() if path.suffix == ".h5")
    except (FileNotFoundError, NotADirectoryError):
        raise Mistaken(
            f"{arguments.folder} is not a folder; name the folder that has the sessions"
        ) from None
    except OSError as error:
        raise Mistaken(f"{arguments.folder} cannot be listed: {error.strerror}") from None
    paths, sessions = [], []
    for path in files:
        try:
            sessions.append(load(path))
            paths.append(path)
        except (SessionError, Mistaken) as error:  # Mistaken: a link to a file that is gone
            print_status(f"left out: {error}")
    titles = names(paths)
    points, left_out = history(sessions, titles)
    if not points:
        raise Mistaken(f"{arguments.folder} has no session with steady steps")
    if left_out:
        print_status(
            f"left out: {counted(left_out, 'session')} of other configurations, "
            "or without steady steps"
        )
    table = history_table(points)
    if output is not None and output.suffix.lower() in _TABLE_SUFFIXES:
        write_text(output, table.to_markdown())
    elif output is not None:
        try:
            plot_export.export_plot("history", runs_of(sessions, titles), output)
        except plot_export.Unwritable as error:
            raise Failed(str(error)) from None
        except plot_export.ExportError as error:
            raise Mistaken(str(error)) from None
    if arguments.json:
        file = None if output is None else str(output)
        answer_json({"reason": "done", "file": file, **table.to_data()})
    else:
        answer(render(table))
    return DONE


COMMAND = Command(name="history", help=__doc__, arguments=_arguments, run=_run, tabular=True)
