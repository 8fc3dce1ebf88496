"""Measure what the documents claim: each claimed number, the measured one, and if it holds.

Every experiment has a time limit: --budget seconds of measuring for each claim, plus time for
building and compiling. What is not finished in this time is "not measured", with the reason.
Results are printed as soon as they are known, and Ctrl+C keeps them.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from sessions.model import Study
from sessions.numbers import counted
from sessions.studies import claims
from sessions.studies.claims import HOLDS, NOT_HERE, NOT_MEASURED, Row
from sessions.tables import Column, Table
from workbench import calibration, protocol
from workbench.claims import documents
from workbench.claims._adaattn_suite import Suite
from workbench.claims._claim import Omission
from workbench.claims._course import Chosen, Course
from workbench.client import headless
from workbench.commands._arguments import positive_float
from workbench.commands._command import (
    DONE,
    FAILED,
    UNDECIDED,
    Command,
    Mistaken,
    answer,
    answer_json,
    check_session,
    print_status,
)
from workbench.commands._headless import Bar, as_data, exit_code, settle
from workbench.commands._tables import render

BUDGET_S = 30.0
ALL = "all"
SUITED = "adaattn"  # the only document with a benchmark suite


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "documents", nargs="+", metavar="DOCUMENT", help=f"{', '.join(documents())}, or {ALL}"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="EXPERIMENT", help="default: all"
    )
    parser.add_argument(
        "--budget",
        type=positive_float,
        default=BUDGET_S,
        metavar="SECONDS",
        help="longest time of measuring for each claim; claims of one measurement share it, and "
        f"building and compiling take additional time; default: {BUDGET_S:g}",
    )
    parser.add_argument(
        "--limit",
        type=positive_float,
        metavar="SECONDS",
        help="total time; claims that remain after it are reported as not measured",
    )
    parser.add_argument(
        "--expect",
        choices=("holds",),
        help="exit with 1 if a claim that applies here does not hold, with 3 if some are undecided",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.h5", help="save the session")
    parser.add_argument(
        "--omissions",
        action="store_true",
        help="measure nothing; print the documents' numbers that have no claim, with the reasons",
    )
    parser.add_argument(
        "--suite",
        action="store_true",
        help="run AdaAttn's own benchmark suite instead: implementations, precisions, memory and "
        "scalability, with mean and standard deviation; --budget is for each configuration",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the result as JSON")
    form.add_argument(
        "--markdown",
        action="store_true",
        help="print a table of four columns to paste: claim, document, measured, verdict",
    )


def _run(arguments: argparse.Namespace) -> int:
    chosen = _chosen(arguments.documents, arguments.only)
    if arguments.omissions:
        return _print_omissions(chosen, arguments.json)
    check_session(arguments.output)
    if arguments.suite:
        return _run_suite(arguments)
    course = Course(
        chosen,
        arguments.budget,
        arguments.limit,
        calibration.respected,
    )
    reported: set[tuple[str, ...]] = set()
    with Bar() as progress_bar:

        def watch(message: protocol.AnyMessage) -> None:
            progress_bar.watch(message)
            if isinstance(message, protocol.StudyRows) and message.study == protocol.OWN_STUDY:
                for row in course.rows:
                    if row.final and row.result != NOT_HERE and row.key not in reported:
                        reported.add(row.key)
                        progress_bar.write(_line(row))

        outcome = headless.run_plan(course, watch=watch)
    session, rows = outcome.session, course.rows
    session.title = f"reproduce {' '.join(arguments.documents)}"
    if course.begun:  # the claims tell how its last command ended
        outcome.reason = "cancelled" if course.ended else "done"
    saved = settle(outcome, arguments.output)
    if arguments.json:
        answer_json(
            {
                **as_data(outcome, saved),
                "documents": list(dict.fromkeys(row.document for row in rows)),
                "claims": [dataclasses.asdict(row) for row in rows],
            }
        )
    else:
        title = "Claimed and measured"
        make_table = claims.summary_table if arguments.markdown else claims.claims_table
        answer(render(make_table(rows, title)))
        answer(claims.count(rows))
        omitted = sum(len(omissions) for _, omissions in _omissions(chosen))
        print_status(
            f"no claim states {counted(omitted, 'number')} of the documents; "
            "--omissions prints the reasons"
        )
        if saved:
            answer(f"saved {saved}")
    return _code(arguments, outcome, rows)


def _run_suite(arguments: argparse.Namespace) -> int:
    """Run AdaAttn's benchmark suite and print its table."""
    if arguments.documents != [SUITED]:
        raise Mistaken(f"--suite: only {SUITED} has a benchmark suite; name only this document")
    suite = Suite(arguments.budget)
    with Bar() as progress_bar:
        outcome = headless.run_plan(suite, watch=progress_bar.watch)
    outcome.session.title = f"reproduce {SUITED} --suite"
    if outcome.reason == "failed" and outcome.session.segments:
        outcome.reason = "done"  # a failure is a row with its reason
    saved = settle(outcome, arguments.output)
    table = suite.table()
    if arguments.json:
        names = [column.name for column in table.columns]
        rows = [dict(zip(names, map(str, row), strict=True)) for row in table.rows]
        answer_json({**as_data(outcome, saved), "suite": rows})
    else:
        answer(render(table))
        if saved:
            answer(f"saved {saved}")
    return exit_code(outcome)


def _omissions(chosen: Sequence[Chosen]) -> list[tuple[str, tuple[Omission, ...]]]:
    """Return the statements of the chosen documents that no claim measures, by document."""
    return list({document.name: document.omissions for document, _ in chosen}.items())


def _print_omissions(chosen: Sequence[Chosen], as_json: bool) -> int:
    """Print every number that has no claim with its reason."""
    rows = [
        (name, omission.quote, omission.reason)
        for name, omissions in _omissions(chosen)
        for omission in omissions
    ]
    columns = ("document", "passage", "reason")
    if as_json:
        omissions = [dict(zip(columns, row, strict=True)) for row in rows]
        answer_json({"reason": "done", "omissions": omissions})
    else:
        title = "Numbers without a claim"
        headings = [Column(name) for name in columns]
        answer(render(Table(title, headings, [[*row] for row in rows])))
    return DONE


def study_lines(study: Study) -> list[str]:
    """Return the study as lines of text."""
    rows = claims.rows(study)
    return [render(claims.claims_table(rows, study.title)), claims.count(rows)]


def _chosen(names: Sequence[str], only: Sequence[str]) -> list[Chosen]:
    """Return the requested experiments; raise ``Mistaken`` for an unknown name."""
    known = documents()
    for name in names:
        if name not in known and name != ALL:
            allowed = ", ".join(known)
            raise Mistaken(f"unknown document {name!r}; expected one of {allowed}, {ALL}")
    requested = list(known) if ALL in names else list(dict.fromkeys(names))
    offered = [
        (known[name], experiment) for name in requested for experiment in known[name].experiments
    ]
    for name in only:
        if all(name != experiment.name for _, experiment in offered):
            allowed = ", ".join(dict.fromkeys(experiment.name for _, experiment in offered))
            raise Mistaken(f"--only: unknown {name!r}; expected one of {allowed}")
    return [pair for pair in offered if not only or pair[1].name in only]


def _line(row: Row) -> str:
    """Return the line of a claim."""
    measured = claims.measured_text(row)
    shown = f"measured {measured}; " if measured else ""
    telling = not measured or row.result == claims.UNDECIDED
    reason = f": {row.reason}" if row.reason and telling else ""
    return f"{row.document}: {row.claim}, claimed {row.says}: {shown}{row.result}{reason}"


def _code(arguments: argparse.Namespace, outcome: headless.Outcome, rows: Sequence[Row]) -> int:
    code = exit_code(outcome)
    if code != DONE:
        return code
    if any(row.result == NOT_MEASURED for row in rows):
        return FAILED
    open_results = {row.result for row in rows} - {HOLDS, NOT_HERE}
    if not arguments.expect or not open_results:
        return DONE
    print_status(f"expected every claim to hold: {claims.count(rows)}")
    return UNDECIDED if open_results == {claims.UNDECIDED} else FAILED


COMMAND = Command(name="reproduce", help=__doc__, arguments=_arguments, run=_run, drives=True)
