"""Measure what a document claims: each number beside the measured one, holds or does not hold."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from sessions.model import Study
from workbench import floors, headless, protocol
from workbench.claims import Document, documents
from workbench.claims._claim import (
    HOLDS,
    NOT_HERE,
    NOT_MEASURED,
    Experiment,
    Found,
    Outcome,
    judge,
    why_not,
)
from workbench.claims._results import as_data, claims_table, count, study
from workbench.commands._command import (
    DONE,
    FAILED,
    Command,
    Mistaken,
    answer,
    answer_json,
    check_output,
    say,
)
from workbench.commands._headless import Bar, exit_code, settle
from workbench.commands.run import positive_float

BUDGET_S = 30.0


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("document", help=f"one of {', '.join(documents())}")
    parser.add_argument(
        "--only", action="append", default=[], metavar="EXPERIMENT", help="default: all"
    )
    parser.add_argument(
        "--budget",
        type=positive_float,
        default=BUDGET_S,
        metavar="SECONDS",
        help=f"of measuring, for each configuration of an experiment; default: {BUDGET_S:g}",
    )
    parser.add_argument(
        "--expect", choices=("holds",), help="exit with 1 unless every claim holds that can here"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.h5", help="save the session")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.output is not None:
        check_output(arguments.output)
    document = documents().get(arguments.document)
    if document is None:
        allowed = ", ".join(documents())
        raise Mistaken(f"unknown document {arguments.document!r}; expected one of {allowed}")
    experiments = _chosen(document, arguments.only)
    outcomes: list[Outcome] = []

    def plan(catalogue: protocol.Catalogue, so_far: headless.Outcome) -> Iterator[protocol.Command]:
        floor = floors.floor_of(catalogue.device_title)
        for experiment in experiments:
            outcomes.extend(judge(experiment, c, catalogue.device, None) for c in experiment.claims)
        for experiment in experiments:
            if all(why_not(experiment, claim, catalogue.device) for claim in experiment.claims):
                continue
            session = so_far.session
            before = len(session.segments), len(so_far.failures)
            studies: list[Study | None] = []
            try:
                for command in experiment.commands(catalogue, arguments.budget):
                    if isinstance(command, protocol.Attribute):
                        command.floor = floor
                    count_before = len(session.studies)
                    studies.append(None)
                    try:
                        yield command
                    finally:
                        if len(session.studies) > count_before:
                            studies[-1] = session.studies[-1]
            finally:  # also where the plan is given up: what was measured counts
                found = Found(
                    session,
                    session.segments[before[0] :],
                    studies,
                    [failure.sentence for failure in so_far.failures[before[1] :]],
                )
                for place, one in enumerate(outcomes):
                    if one.experiment is experiment:
                        outcomes[place] = judge(experiment, one.claim, catalogue.device, found)

    with Bar() as bar:
        outcome = headless.run_plan(plan, watch=bar.watch)
    session = outcome.session
    session.title = f"reproduce {document.name}"
    if outcome.reason == "failed":  # the last command's; the claims tell of it
        outcome.reason = "done"
    session.studies.append(study(document, outcomes, session))
    saved = settle(outcome, arguments.output)
    if arguments.json:
        answer_json(
            {
                "reason": outcome.reason,
                "file": saved,
                "document": document.name,
                "failures": [msgspec.to_builtins(failure) for failure in outcome.failures],
                "environment": session.environment,
                "claims": [as_data(one) for one in outcomes],
            }
        )
    else:
        answer(claims_table(document, outcomes).to_markdown())
        answer(count(outcomes))
        if saved:
            answer(f"saved {saved}")
    return _code(arguments, outcome, outcomes)


def _chosen(document: Document, names: Sequence[str]) -> list[Experiment]:
    known = {experiment.name: experiment for experiment in document.experiments}
    for name in names:
        if name not in known:
            raise Mistaken(f"--only: unknown {name!r}; expected one of {', '.join(known)}")
    return [known[name] for name in names] or list(document.experiments)


def _code(
    arguments: argparse.Namespace, outcome: headless.Outcome, outcomes: Sequence[Outcome]
) -> int:
    code = exit_code(outcome)
    if code != DONE:
        return code
    if any(one.verdict == NOT_MEASURED for one in outcomes):
        return FAILED
    if arguments.expect and any(one.verdict not in (HOLDS, NOT_HERE) for one in outcomes):
        say(f"expected every claim to hold: {count(outcomes)}")
        return FAILED
    return DONE


COMMAND = Command(name="reproduce", help=__doc__, arguments=_arguments, run=_run)
