"""Show the content of a session file, or print the commands that run it again."""

from __future__ import annotations

import argparse
import contextlib
import importlib
from pathlib import Path
from typing import Any

from sessions.columns import row_count
from sessions.model import (
    ATTRIBUTION,
    CHECKLIST,
    CLAIMS,
    OPTIMIZATION,
    PROFILE,
    SCALING,
    SWEEP,
    PairedComparison,
    Study,
)
from sessions.numbers import counted, moment
from sessions.reproduction import command_lines
from sessions.studies.attribution.words import rows
from sessions.tables import segments_table
from sessions.verdicts.multiple_comparisons import side_by_side
from sessions.verdicts.verdict_tables import verdicts_table
from sessions.verdicts.verdict_words import summary_sentence
from sessions.verdicts.work import DIFFERENCE, DIFFERING
from workbench.commands._arguments import verbose_argument
from workbench.commands._command import DONE, Command, answer, answer_json, load
from workbench.commands._tables import evidence_lines, render
from workbench.commands.run import summary

# The command that makes a kind of study.
_MADE_BY = {
    ATTRIBUTION: "attribute",
    CHECKLIST: "validate",
    CLAIMS: "reproduce",
    OPTIMIZATION: "optimize",
    PROFILE: "profile",
    SCALING: "scale",
    SWEEP: "sweep",
}


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE.h5")
    verbose_argument(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the same as JSON")
    form.add_argument(
        "--command",
        dest="shell",
        action="store_true",
        help="print a shell script that repeats all runs and studies, and lists at its end the "
        "commands that did not exit with 0",
    )
    form.add_argument("--python", action="store_true", help="print the same script in Python")


def _run(arguments: argparse.Namespace) -> int:
    session = load(arguments.file)
    if arguments.shell:
        answer(command_lines.session_commands(session, arguments.file.stem))
    elif arguments.python:
        answer(command_lines.session_python(session, arguments.file.stem))
    elif arguments.json:
        answer_json(
            {
                "reason": "done",
                "title": session.title,
                "id": session.id,
                "created": session.created,
                "notes": session.notes,
                "environment": session.environment,
                "comparisons": [
                    _comparison(judged) for judged in side_by_side(session.comparisons)
                ],
                "segments": [summary(segment) for segment in session.segments],
                "studies": [_study(study) for study in session.studies],
                "events": [[event.t_s, event.kind, event.text] for event in session.events],
            }
        )
    else:
        lines = [f"{session.title} ({moment(session.created)})", ""]
        if session.notes:
            lines += [session.notes, ""]
        lines += [f"{name}: {value}" for name, value in session.environment.items()]
        if session.segments:
            lines += ["", render(segments_table(session))]
        elif not session.studies:
            lines += ["", "nothing ran in this session", ""]
        if hint := command_lines.session_hint(session):
            lines += [hint, ""]
        for segment in session.segments:
            prefix = f"segment {segment.index}: "
            lines += evidence_lines(segment.evidence, arguments.verbose, prefix)
        if session.comparisons:
            lines.append(render(verdicts_table(session.comparisons)))
            lines += [
                f"{' against '.join(judged.arms[::-1])}: {summary_sentence(judged)}."
                for judged in side_by_side(session.comparisons)
            ]
        for study in session.studies:
            lines += ["", f"{study.kind}: {study.title}", *_study_lines(study)]
        lines += [f"{event.t_s:9.2f} s  {event.kind}: {event.text}" for event in session.events]
        answer("\n".join(lines))
    return DONE


def _study(study: Study) -> dict[str, Any]:
    """Return a study in numbers, with each table by rows."""
    data: dict[str, Any] = {"kind": study.kind, "title": study.title, "asked": study.request}
    tables = {name: rows(study, name) for name in study.tables}
    return data | {"facts": study.facts, "tables": tables}


def _study_lines(study: Study) -> list[str]:
    """Return the lines that the command which makes such a study would print."""
    if study.kind in _MADE_BY:
        maker = importlib.import_module(f"workbench.commands.{_MADE_BY[study.kind]}")
        with contextlib.suppress(LookupError, ValueError):  # another version may have written it
            lines: list[str] = maker.study_lines(study)
            return lines
    return [
        f"{name}: {counted(row_count(columns), 'row')}" for name, columns in study.tables.items()
    ]


def _comparison(comparison: PairedComparison) -> dict[str, Any]:
    """Return a comparison in numbers with its corrected verdict; ``alone`` is uncorrected."""
    facts = comparison.facts
    names = ("ratio", "low", "high", "verdict", "arms")
    data = {name: getattr(comparison, name) for name in names}
    keys = ["alone", "p", "p_holm", "of", "pairs", "reasons", "others", "numerics", "segments"]
    keys += ["prediction", DIFFERENCE, DIFFERING]
    return data | {name: facts[name] for name in keys if name in facts}


COMMAND = Command(name="info", help=__doc__, arguments=_arguments, run=_run, tabular=True)
