"""Measure the effect of each toggle: ladder, leave-one-out, interactions or shares."""

from __future__ import annotations

import argparse
from typing import Any

from sessions.model import Study
from sessions.studies.attribution import design, estimation
from sessions.studies.attribution.words import (
    arms_table,
    effects_table,
    headline,
    is_measured,
    newest,
    remarks,
    rows,
    wrong_arms,
)
from workbench import calibration, protocol
from workbench.client.headless import Outcome
from workbench.commands._arguments import (
    budget_argument,
    integer,
    region_argument,
    result_arguments,
)
from workbench.commands._command import (
    DONE,
    FAILED,
    Command,
    Mistaken,
    answer_json,
    check_session,
)
from workbench.commands._headless import answer_lines, as_data, drive, exit_code, settle
from workbench.commands._tables import render
from workbench.commands.run import (
    configuration_arguments,
    configure,
    toggles_in,
)

BUDGET_S = 60.0
ORDERS = 8


def _arguments(parser: argparse.ArgumentParser) -> None:
    configuration_arguments(parser)
    parser.add_argument(
        "--toggles",
        required=True,
        metavar="NAME=OPTION,...",
        help="the toggles to measure, in the order of the ladder; the rest is the base",
    )
    parser.add_argument("--mode", choices=design.MODES, default="ladder", help="default: ladder")
    parser.add_argument(
        "--timed",
        choices=estimation.TIMED,
        default=estimation.WHOLE_STEP,
        help="what is timed: the complete step, or only the backward pass of a training step; "
        "default: step",
    )
    budget_argument(parser, BUDGET_S)
    region_argument(parser)
    parser.add_argument(
        "--orders",
        type=integer,
        default=ORDERS,
        help=f"orders that shapley samples; default: {ORDERS}",
    )
    result_arguments(parser)


def _run(arguments: argparse.Namespace) -> int:
    check_session(arguments.output)

    named = [choice.partition("=")[0].strip() for choice in arguments.toggles.split(",")]
    if twice := {name for name in named if name and named.count(name) > 1}:
        raise Mistaken(
            f"--toggles: {', '.join(sorted(twice))} is named twice; a toggle has one option here, "
            "so measure the other option in another command"
        )

    def begin(catalogue: protocol.Catalogue) -> protocol.Attribute:
        base = configure(catalogue, arguments)
        toggles = toggles_in(catalogue, arguments.toggles)
        if not toggles:
            raise Mistaken("--toggles: name at least one, as NAME=OPTION")
        command = protocol.Attribute(
            base=base,
            toggles=toggles,
            mode=arguments.mode,
            budget_s=arguments.budget,
            region=arguments.region / 100,
            seed=arguments.seed,
            orders=arguments.orders,
            timed=arguments.timed,
        )
        return calibration.respected(catalogue, command)

    outcome = drive(begin)
    session = outcome.session
    if session.segments:
        session.title = f"{session.segments[0].configuration.title}: {arguments.mode}"
    saved = settle(outcome, arguments.output)
    study = newest(session)
    if arguments.json:
        answer_json(_as_data(outcome, saved))
    else:
        answer_lines([] if study is None else study_lines(study), saved)
    code = exit_code(outcome)
    if code != DONE or study is None:
        return code
    return FAILED if wrong_arms(study) or not is_measured(study) else DONE


def study_lines(study: Study) -> list[str]:
    """Return the study as lines of text."""
    tables = [render(arms_table(study)), render(effects_table(study))]
    return [headline(study), "", *tables, *remarks(study)]


def _as_data(outcome: Outcome, saved: str | None) -> dict[str, Any]:
    """Return the outcome for the JSON answer."""
    data = as_data(outcome, saved)
    study = newest(outcome.session)
    if study is not None:
        data |= {**study.request, **study.facts, "headline": headline(study)}
        for table in ("arms", "effects", "blocked", "blocks"):
            data[table] = rows(study, table)
        data["wrong"] = wrong_arms(study)
    return data


COMMAND = Command(
    name="attribute", help=__doc__, arguments=_arguments, run=_run, tabular=True, drives=True
)
