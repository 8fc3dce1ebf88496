"""Search for the best configuration with correct results, and measure it again with new blocks.

Builds, compiles and checks count in the budget. Wrong results are never proposed.
"""

from __future__ import annotations

import argparse
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

from sessions.model import Study
from sessions.studies.optimization.space import BATCH, OBJECTIVES, TIME
from sessions.studies.optimization.words import (
    BLOCKS,
    CANDIDATES,
    EFFECTS,
    OPTIONS,
    batch_of,
    best_row,
    candidates_table,
    changed_options,
    headline,
    newest,
    options_table,
    remarks,
    rows,
    toggles_of,
    verdicts_table,
)
from workbench import calibration, presets, protocol
from workbench.client.headless import Outcome
from workbench.commands._arguments import (
    counts,
    names,
    positive_float,
    region_argument,
    result_arguments,
)
from workbench.commands._command import (
    DONE,
    FAILED,
    Command,
    Failed,
    answer_json,
    check_output,
    check_session,
)
from workbench.commands._headless import answer_lines, as_data, drive, exit_code, settle
from workbench.commands._tables import render
from workbench.commands.run import configuration_arguments, configure

BUDGET = "10m"
GIB = 2**30
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def _arguments(parser: argparse.ArgumentParser) -> None:
    configuration_arguments(parser)
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        default=TIME,
        help="what the search minimises in a step; default: time",
    )
    parser.add_argument(
        "--memory-limit",
        type=positive_float,
        metavar="GIB",
        help="highest peak memory of the result, in GiB",
    )
    parser.add_argument(
        "--max-error",
        type=positive_float,
        metavar="X",
        help="largest allowed absolute error of an output against the reference",
    )
    parser.add_argument(
        "--budget",
        type=duration,
        default=duration(BUDGET),
        metavar="TIME",
        help=f"total time, with builds, such as 90s, 10m or 1h; default: {BUDGET}",
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--include", type=names, default=[], metavar="TOGGLE,...", help="search only these toggles"
    )
    chosen.add_argument(
        "--exclude",
        type=names,
        default=[],
        metavar="TOGGLE,...",
        help="do not change these toggles",
    )
    parser.add_argument(
        "--batch",
        type=partial(counts, expected="batch sizes such as 8,16,32"),
        default=[],
        metavar="N,...",
        help="search these batch sizes too; times are then scaled to the start's batch",
    )
    region_argument(parser)
    parser.add_argument(
        "--save-preset",
        type=Path,
        metavar="FILE.json",
        help="write the result's toggles as a toggle set, for --toggle @FILE.json and the window",
    )
    result_arguments(parser)


def duration(text: str) -> float:
    """Return the seconds of a time such as 90, 90s, 10m or 1h, for argparse."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*([smh]?)", text.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 10m or 1h")
    return seconds


def _run(arguments: argparse.Namespace) -> int:
    check_session(arguments.output, arguments.save_preset)
    if arguments.save_preset is not None:
        check_output(arguments.save_preset, (presets.SUFFIX,))
    limit = arguments.memory_limit

    def begin(catalogue: protocol.Catalogue) -> protocol.Optimize:
        return calibration.respected(
            catalogue,
            protocol.Optimize(
                base=configure(catalogue, arguments),
                objective=arguments.objective,
                memory_limit=None if limit is None else limit * GIB,
                max_error=arguments.max_error,
                budget_s=arguments.budget,
                include=arguments.include,
                exclude=arguments.exclude,
                batches=arguments.batch,
                region=arguments.region / 100,
                seed=arguments.seed,
            ),
        )

    outcome = drive(begin)
    study = newest(outcome.session)
    if study is not None:
        outcome.session.title = study.title
    saved = settle(outcome, arguments.output)
    if study is not None and arguments.save_preset is not None:
        _save_preset(study, arguments.save_preset)
    if arguments.json:
        answer_json(_as_data(outcome, saved, study))
    else:
        answer_lines([] if study is None else study_lines(study), saved)
    code = exit_code(outcome)
    if code == DONE and (study is None or best_row(study) is None):
        return FAILED
    return code


def study_lines(study: Study) -> list[str]:
    """Return the study as lines of text."""
    lines = [headline(study), ""]
    if study.tables.get(EFFECTS):
        lines.append(render(verdicts_table(study)))
    lines += [render(candidates_table(study)), render(options_table(study))]
    lines += remarks(study)
    best = best_row(study)
    if options := [] if best is None else sorted(changed_options(best)):
        lines.append(f"The result: {' '.join(map(_argument, options))}")
    return lines


def _argument(option: str) -> str:
    """Return the argument of `workbench run` for a change: a toggle's option, or the batch."""
    _, is_batch, batch = option.partition(f"{BATCH}=")
    return f"--set batch={batch}" if is_batch else f"--toggle {option}"


def _save_preset(study: Study, path: Path) -> None:
    best = best_row(study)
    if best is None:
        raise Failed(f"{path} was not written: no configuration can be proposed.")
    try:
        presets.write(path, {study.title: toggles_of(study, best)})
    except ValueError as error:
        raise Failed(f"{error}.") from None


def _as_data(outcome: Outcome, saved: str | None, study: Study | None) -> dict[str, Any]:
    """Return the outcome as JSON data."""
    data = as_data(outcome, saved)
    if study is None:
        return data
    best = best_row(study)
    data |= {**study.request, **study.facts, "headline": headline(study)}
    data["best"] = None if best is None else toggles_of(study, best)
    data["best_batch"] = None if best is None else batch_of(study, best)
    for table in (CANDIDATES, OPTIONS, EFFECTS, BLOCKS):
        data[table] = rows(study, table)
    return data


COMMAND = Command(
    name="optimize", help=__doc__, arguments=_arguments, run=_run, tabular=True, drives=True
)
