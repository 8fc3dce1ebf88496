"""Go through the validation checklist for one configuration.

Exits with 1 if a check fails or an applicable check was not possible. Exits with 3 if everything
else is right, but the speed-up is undecided; the output names a sufficient --budget.
"""

from __future__ import annotations

import argparse
from typing import Any

from sessions.model import Study
from sessions.studies import checklist
from workbench import calibration, protocol
from workbench.client.headless import Outcome
from workbench.commands._arguments import (
    budget_argument,
    positive_float,
    positive_int,
    result_arguments,
)
from workbench.commands._command import (
    DONE,
    FAILED,
    UNDECIDED,
    Command,
    answer_json,
    check_session,
)
from workbench.commands._headless import answer_lines, as_data, drive, exit_code, settle
from workbench.commands.run import configuration_arguments, configure

BUDGET_S = 20.0
STEPS = 20


def _arguments(parser: argparse.ArgumentParser) -> None:
    configuration_arguments(parser)
    parser.add_argument(
        "--expect-speedup",
        type=positive_float,
        metavar="X",
        help="least speed-up over everything switched off; default: not slower",
    )
    parser.add_argument(
        "--batch",
        type=positive_int,
        action="append",
        default=[],
        help="another batch size to try; default: 1 and one more than the configuration's",
    )
    parser.add_argument(
        "--steps",
        type=positive_int,
        default=STEPS,
        help=f"steps of each check; default: {STEPS}",
    )
    budget_argument(parser, BUDGET_S, "longest time for the speed-up")
    result_arguments(parser)


def _run(arguments: argparse.Namespace) -> int:
    check_session(arguments.output)

    def begin(catalogue: protocol.Catalogue) -> protocol.Validate:
        command = protocol.Validate(
            configuration=configure(catalogue, arguments),
            steps=arguments.steps,
            batches=arguments.batch,
            expect_speedup=arguments.expect_speedup,
            budget_s=arguments.budget,
        )
        return calibration.respected(catalogue, command)

    outcome = drive(begin)
    study = checklist.newest(outcome.session)
    if study is not None:
        outcome.session.title = f"{study.title}: checklist"
    saved = settle(outcome, arguments.output)
    if arguments.json:
        answer_json(_as_data(outcome, study, saved))
    else:
        answer_lines([] if study is None else study_lines(study), saved)
    code = exit_code(outcome)
    if code != DONE or (study is not None and checklist.is_shown(study)):
        return code
    return UNDECIDED if study is not None and checklist.is_open(study) else FAILED


def _as_data(outcome: Outcome, study: Study | None, saved: str | None) -> dict[str, Any]:
    return {
        **as_data(outcome, saved),
        "title": None if study is None else study.title,
        "asked": None if study is None else study.request,
        "undecided": study is not None and checklist.is_open(study),
        "budget_s": None if study is None else checklist.budget_s(study),
        "checks": [] if study is None else [vars(row) for row in checklist.rows(study)],
    }


def study_lines(study: Study) -> list[str]:
    """Return the study as lines of text."""
    lines = [study.title, ""]
    for row in checklist.rows(study):
        lines.append(f"{row.status.upper():<15}{row.title}: {row.evidence or 'not done'}")
        lines += [f"{'':<17}{line}" for line in row.lines]
    lines += ["", checklist.headline(study)]
    if (budget_s := checklist.budget_s(study)) is not None:
        lines.append(f"--budget {budget_s:.0f} should be enough to decide")
    return lines


COMMAND = Command(name="validate", help=__doc__, arguments=_arguments, run=_run, drives=True)
