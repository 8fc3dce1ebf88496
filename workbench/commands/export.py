"""Export a chart of saved sessions as PNG, SVG, PDF or CSV, or a table as Markdown or CSV."""

from __future__ import annotations

import argparse
from pathlib import Path

from sessions.model import Session
from sessions.tables import segments_table
from workbench.commands._command import DONE, Command, Mistaken, answer, load


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.h5")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--plot", metavar="NAME", help="an unknown name lists them all")
    what.add_argument("--table", choices=["segments"])
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help=".png .svg .pdf .csv; a table: .md .csv"
    )


def _run(arguments: argparse.Namespace) -> int:
    sessions = [load(path) for path in arguments.files]
    if arguments.table:
        _write_table(sessions[0], arguments.output)
    else:
        # Qt: only where something is drawn
        from workbench.ui.export import ExportError, export_plot
        from workbench.ui.plots import Run

        runs = [
            Run(session, path.stem, place)
            for place, (path, session) in enumerate(zip(arguments.files, sessions, strict=True))
        ]
        try:
            export_plot(arguments.plot, runs, arguments.output)
        except ExportError as error:
            raise Mistaken(str(error)) from None
    answer(str(arguments.output))
    return DONE


def _write_table(session: Session, path: Path) -> None:
    table = segments_table(session)
    forms = {".md": table.to_markdown, ".csv": table.to_csv}
    if path.suffix not in forms:
        raise Mistaken(f"{path}: unknown suffix {path.suffix!r}; expected one of {list(forms)}")
    try:
        path.write_text(forms[path.suffix]())
    except OSError as error:
        raise Mistaken(f"{path} cannot be written: {error.strerror}") from None


COMMAND = Command(name="export", help=__doc__, arguments=_arguments, run=_run)
