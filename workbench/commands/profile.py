"""Profile some steps without a window: time by kernel, class and module, and memory by role."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sessions.model import Study
from sessions.studies import breakdown, next_steps
from sessions.studies.breakdown_tables import (
    achieved_table,
    difference_table,
    kernels_table,
    kinds_table,
    memory_difference_table,
    memory_table,
    modules_table,
)
from workbench import protocol
from workbench.client import runner_command
from workbench.commands._arguments import positive_int, result_arguments
from workbench.commands._command import (
    Command,
    answer,
    answer_json,
    check_output_there,
    check_session,
)
from workbench.commands._headless import as_data, drive, exit_code, settle
from workbench.commands._tables import render
from workbench.commands.run import (
    configuration_arguments,
    configure,
    with_toggles,
)

STEPS = 3
_TRACES = (".json", ".gz")


def _arguments(parser: argparse.ArgumentParser) -> None:
    configuration_arguments(parser)
    for side in "ab":
        parser.add_argument(
            f"--{side}",
            metavar="NAME=OPTION,...",
            help=f"toggles of {side.upper()} only; with --b, A and B are profiled and compared",
        )
    parser.add_argument(
        "--steps",
        type=positive_int,
        default=STEPS,
        help=f"number of profiled steps; default: {STEPS}",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE.json[.gz]",
        help="write a Chrome trace for ui.perfetto.dev; for two arms, FILE-a and FILE-b",
    )
    result_arguments(parser)


def _run(arguments: argparse.Namespace) -> int:
    check_session(arguments.output, arguments.trace)
    sides = _sides(arguments)
    traces = _traces(arguments.trace, len(sides))

    def begin(catalogue: protocol.Catalogue) -> protocol.Profile:
        configuration = configure(catalogue, arguments)
        return protocol.Profile(
            configurations=[with_toggles(catalogue, configuration, side) for side in sides],
            steps=arguments.steps,
            traces=[runner_command.path(trace) for trace in traces],
        )

    outcome = drive(begin)
    session = outcome.session
    if session.segments:
        session.title = f"{session.segments[0].configuration.title}: profile"
    saved = settle(outcome, arguments.output)
    studies = breakdown.profiles(session)
    if arguments.json:
        answer_json(
            {
                **as_data(outcome, saved),
                "profiles": [_profile(study) for study in studies],
                "difference": _changes(studies),
            }
        )
    else:
        if studies:
            answer("\n".join(line for study in studies for line in study_lines(study)))
        if len(studies) == 2:
            if why_not := breakdown.not_by_module(studies[0], studies[1]):
                answer(why_not)
            answer(render(difference_table(studies[0], studies[1])))
            answer(render(memory_difference_table(studies[0], studies[1])))
        if len(studies) == 1:
            for line in next_steps.lines(session, studies[0]):
                answer(line)
        for study in studies:
            if "trace" in study.facts:
                host_suffix = runner_command.host_suffix(session.environment)
                answer(f"trace {study.facts['trace']}{host_suffix}: open it at ui.perfetto.dev")
        if saved:
            answer(f"saved {saved}")
    return exit_code(outcome)


def _sides(arguments: argparse.Namespace) -> list[str]:
    """Return the toggles of each arm without those of both."""
    if arguments.b is None:
        return [arguments.a or ""]
    return [arguments.a or "", arguments.b]


def _traces(requested: Path | None, count: int) -> list[Path]:
    if requested is None:
        return []
    check_output_there(requested, _TRACES)
    if count == 1:
        return [requested]
    name, dot, suffixes = requested.name.partition(".")
    return [requested.with_name(f"{name}-{side}{dot}{suffixes}") for side in "ab"]


def study_lines(study: Study) -> list[str]:
    """Return the study as lines of text."""
    lines = [study.title, *breakdown.words(study), ""]
    tables = [kinds_table(study), kernels_table(study), modules_table(study), memory_table(study)]
    if breakdown.achieved(study):
        tables.insert(1, achieved_table(study))
    return lines + [render(table) for table in tables]


def _changes(studies: list[Study]) -> list[dict[str, Any]]:
    """Return the differences between two arms, for the JSON answer."""
    if len(studies) != 2:
        return []
    return [
        {
            "module": change.module,
            "a_us": change.before_us,
            "b_us": change.after_us,
            "difference_us": change.difference_us,
        }
        for change in breakdown.difference(studies[0], studies[1])
    ]


def _profile(study: Study) -> dict[str, Any]:
    return {
        "title": study.title,
        "asked": study.request,
        "facts": study.facts,
        "idle_share": breakdown.idle_share(study),
        "unattributed_share": breakdown.unattributed(study),
        "us_by_module": breakdown.totals(study),
        "us_by_kind": {kind: us for kind, (_, us) in breakdown.by(study, "kind").items()},
        "tables": {
            name: {column: values.tolist() for column, values in table.items()}
            for name, table in study.tables.items()
        },
    }


COMMAND = Command(
    name="profile", help=__doc__, arguments=_arguments, run=_run, tabular=True, drives=True
)
