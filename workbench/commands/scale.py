"""Compare training steps on several GPUs with those on a single GPU.

The result is efficiency, exposed communication, skew and memory.

Kinds: data (replicas), gradients and fsdp (shards of weights), hybrid (shards within halves),
tensor, sequence (tensor and sequence), pipeline, context, expert. + combines two kinds; the second
one uses two ranks: data+tensor. Without a GPU, ranks are processes that share the CPU. Exits with 1
if numbers are wrong.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from sessions.model import Study
from sessions.studies.attribution.words import rows
from sessions.studies.rank_scaling import (
    MODES,
    POINTS,
    RANKS,
    STRONG,
    curves,
    headline,
    points_table,
    ranks_table,
    scalings,
    wrong_points,
)
from workbench import calibration, protocol
from workbench.client.headless import Outcome
from workbench.commands._arguments import (
    budget_argument,
    counts,
    names,
    region_argument,
    result_arguments,
)
from workbench.commands._command import (
    DONE,
    FAILED,
    Command,
    answer_json,
    check_session,
)
from workbench.commands._headless import answer_lines, as_data, drive, exit_code, settle
from workbench.commands._tables import render
from workbench.commands.run import changed_toggles, configuration_arguments, configure

BUDGET_S = 20.0


def _arguments(parser: argparse.ArgumentParser) -> None:
    configuration_arguments(parser)
    parser.set_defaults(workload="train")
    parser.add_argument(
        "--ranks",
        type=partial(counts, expected="numbers of ranks such as 1,2,4"),
        default=[1, 2],
        metavar="N,...",
        help="numbers of ranks; one device is always measured; default: 1,2",
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        default=STRONG,
        help="strong: ranks share the batch; weak: each rank has a full batch; default: strong",
    )
    parser.add_argument(
        "--kinds",
        type=names,
        default=["data"],
        metavar="KIND,...",
        help="data, gradients, fsdp, hybrid, tensor, sequence, pipeline, context, expert, or "
        "several with +, such as data+tensor; default: data",
    )
    parser.add_argument(
        "--with",
        dest="beside",
        default="",
        metavar="NAME=OPTION,...",
        help="toggles for the steps on several ranks only, such as micro_batches=8",
    )
    budget_argument(parser, BUDGET_S, "longest time of alternating for each comparison")
    region_argument(parser)
    parser.add_argument(
        "--no-lanes",
        action="store_true",
        help="do not record the time of each rank: exposed communication and skew stay unknown",
    )
    result_arguments(parser)


def _run(arguments: argparse.Namespace) -> int:
    check_session(arguments.output)

    def begin(catalogue: protocol.Catalogue) -> protocol.Scale:
        base = configure(catalogue, arguments)
        command = protocol.Scale(
            base=base,
            ranks=arguments.ranks,
            kinds=arguments.kinds,
            mode=arguments.mode,
            budget_s=arguments.budget,
            region=arguments.region / 100,
            seed=arguments.seed,
            lanes=not arguments.no_lanes,
            toggles=changed_toggles(catalogue, base, arguments.beside),
        )
        return calibration.respected(catalogue, command)

    outcome = drive(begin)
    study = next(reversed(scalings(outcome.session)), None)
    if study is not None:
        outcome.session.title = study.title
    saved = settle(outcome, arguments.output)
    if arguments.json:
        answer_json(_as_data(outcome, saved, study))
    else:
        answer_lines([] if study is None else study_lines(study), saved)
    code = exit_code(outcome)
    if code != DONE or study is None:
        return code
    return FAILED if wrong_points(study) or not curves(study) else DONE


def study_lines(study: Study) -> list[str]:
    """Return the study as lines of text."""
    tables = [points_table(study), ranks_table(study)]
    return [headline(study), "", *(render(table.filled()) for table in tables if table.rows)]


def _as_data(outcome: Outcome, saved: str | None, study: Study | None) -> dict[str, Any]:
    """Return the outcome for programs."""
    data = as_data(outcome, saved)
    if study is None:
        return data
    data |= {**study.request, **study.facts, "headline": headline(study)}
    for table in (POINTS, RANKS):
        data[table] = rows(study, table)
    data["wrong"] = wrong_points(study)
    return data


COMMAND = Command(
    name="scale", help=__doc__, arguments=_arguments, run=_run, tabular=True, drives=True
)
