"""Say what a session file holds, and print the commands that made it."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

from sessions import reproduce
from sessions.tables import segments_table
from workbench.commands._command import DONE, Command, answer, answer_json, load
from workbench.commands.run import summary


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE.h5")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything as JSON")
    form.add_argument("--command", dest="shell", action="store_true", help="a shell script")
    form.add_argument("--python", action="store_true", help="a Python script")


def _run(arguments: argparse.Namespace) -> int:
    session = load(arguments.file)
    if arguments.shell:
        answer(reproduce.session_commands(session, arguments.file.stem))
    elif arguments.python:
        answer(reproduce.session_python(session, arguments.file.stem))
    elif arguments.json:
        answer_json(
            {
                "title": session.title,
                "id": session.id,
                "created": session.created,
                "notes": session.notes,
                "environment": session.environment,
                "segments": [summary(segment) for segment in session.segments],
                "events": [[event.t_s, event.kind, event.text] for event in session.events],
            }
        )
    else:
        created = datetime.datetime.fromtimestamp(session.created).strftime("%Y-%m-%d %H:%M")
        lines = [f"{session.title} ({created})", ""]
        if session.notes:
            lines += [session.notes, ""]
        lines += [f"{name}: {value}" for name, value in session.environment.items()]
        lines += ["", segments_table(session).to_markdown()]
        lines += [f"{event.t_s:9.2f} s  {event.kind}: {event.text}" for event in session.events]
        answer("\n".join(lines))
    return DONE


COMMAND = Command(name="info", help=__doc__, arguments=_arguments, run=_run)
