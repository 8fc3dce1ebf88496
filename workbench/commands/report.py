"""Write one self-contained HTML page about saved sessions: charts, tables, verdicts, evidence."""

from __future__ import annotations

import argparse
from pathlib import Path

from workbench import plugins
from workbench.commands._command import (
    DONE,
    Command,
    Failed,
    Mistaken,
    answer_written,
    check_output,
    load,
    names,
    runs_of,
)
from workbench.theming.theme import DARK, LIGHT, PRINT

_SUFFIXES = (".html",)
_THEMES = {theme.name: theme for theme in (PRINT, LIGHT, DARK)}


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.h5")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.html")
    parser.add_argument(
        "--title", default="", help="title of the page; default: the sessions' names"
    )
    parser.add_argument("--notes", default="", help="notes for the reader, below the title")
    parser.add_argument(
        "--sections",
        metavar="NAME,...",
        help="sections in this order; default: all for which the sessions have data: "
        f"{', '.join(plugins.names('workbench.report', 'sections'))}",
    )
    parser.add_argument("--theme", choices=_THEMES, default=PRINT.name)
    parser.add_argument("--json", action="store_true", help="print the sections as JSON")


def _run(arguments: argparse.Namespace) -> int:
    check_output(arguments.output, _SUFFIXES)
    named = [name.strip() for name in (arguments.sections or "").split(",")]
    chosen = arguments.sections and [*dict.fromkeys(named)]
    known = plugins.names("workbench.report", "sections")
    for name in chosen or ():
        if name not in known:
            raise Mistaken(f"--sections: unknown {name!r}; expected some of {', '.join(known)}")
    sessions = [load(path) for path in arguments.files]
    from workbench.plot_export import ExportError, Unwritable
    from workbench.report import _page as report  # Qt: only to draw

    labels = names(arguments.files)
    if len(sessions) == 1:
        labels = [sessions[0].title]
    runs = runs_of(sessions, labels)
    try:
        content = report.page(
            runs, arguments.title, arguments.notes, chosen, _THEMES[arguments.theme]
        )
        report.write(arguments.output, content)
    except Unwritable as error:
        raise Failed(str(error)) from None
    except ExportError as error:
        raise Mistaken(str(error)) from None
    answer_written(arguments, sections=chosen or [section.name for section in report.offered(runs)])
    return DONE


COMMAND = Command(name="report", help=__doc__, arguments=_arguments, run=_run)
