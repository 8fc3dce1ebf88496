"""Measure a configuration at many sizes under several arms, and fit how its time grows.

The numbers of each arm are checked at the smallest size (for each option if a toggle varies). Exits
with 1 if numbers are wrong.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

from sessions.model import Scalar, Study
from sessions.studies import sweep
from workbench import protocol
from workbench.client.headless import Outcome
from workbench.commands._arguments import positive_float, result_arguments
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
    changed_toggles,
    configuration_arguments,
    configure,
    data_path,
)

SECONDS = 3.0


def _arguments(parser: argparse.ArgumentParser) -> None:
    configuration_arguments(parser)
    parser.add_argument(
        "--over",
        action="append",
        required=True,
        metavar="FIELD=VALUE,...",
        help="what varies, e.g. settings.sequence=128,256,512, model.n_layers=2,4 or preset=a,b; "
        "use it once or twice",
    )
    parser.add_argument(
        "--arm",
        action="append",
        default=[],
        metavar="NAME=OPTION,...",
        help="toggles of an arm, in addition to --toggle; without --arm there is one arm, as "
        "configured; '' adds this arm to others",
    )
    parser.add_argument(
        "--seconds-per-point",
        type=positive_float,
        default=SECONDS,
        metavar="SECONDS",
        help=f"time of steady steps; default: {SECONDS:g}",
    )
    result_arguments(parser)


def _run(arguments: argparse.Namespace) -> int:
    check_session(arguments.output)
    axes = dict(map(_axis, arguments.over))
    if len(axes) < len(arguments.over):
        raise Mistaken("--over: each field can be given once; list all its values there")

    def begin(catalogue: protocol.Catalogue) -> protocol.Sweep:
        base = configure(catalogue, arguments)
        return protocol.Sweep(
            base=base,
            axes=axes,
            arms=[changed_toggles(catalogue, base, arm) for arm in arguments.arm],
            seconds=arguments.seconds_per_point,
            seed=arguments.seed,
        )

    outcome = drive(begin)
    studies = outcome.session.studies
    if studies:
        outcome.session.title = studies[-1].title
    saved = settle(outcome, arguments.output)
    measured = sweep.sweeps(studies)
    if arguments.json:
        answer_json(_as_data(outcome, saved, measured))
    else:
        answer_lines(study_lines(measured[-1]) if measured else [], saved)
    code = exit_code(outcome)
    if code == DONE and not any(curve.measured.any() for curve in sweep.curves(measured[-1])):
        return FAILED
    return FAILED if code == DONE and sweep.wrong_arms(measured[-1]) else code


def _axis(text: str) -> tuple[str, list[Scalar]]:
    field, equals, values = text.partition("=")
    try:
        name = field.strip()
        parsed = sweep.read_values(values if equals else "", name)
    except ValueError:
        raise Mistaken(f"--over {text}: expected FIELD=VALUE,VALUE,...") from None
    return name, [data_path(str(value)) for value in parsed] if name == "data" else parsed


def study_lines(study: Study) -> list[str]:
    """Return the study as lines of text."""
    lines = [render(sweep.points_table(study))]
    for curve in sweep.curves(study):
        lines += _exponents(study, curve)
    lines += sweep.numbers_lines(study)
    lines.append(f"{study.request['order']}, seed {study.request['seed']}")
    return lines


def _exponents(study: Study, curve: sweep.Curve) -> Sequence[str]:
    """Return the exponents of the curve's time, a line for each fitted part."""
    name, field = sweep.name_of(study, curve), sweep.field_title(study)
    lines = []
    for part, over in ((sweep.ALL, ""), (sweep.LONGER, ", over the longer half")):
        fitted = sweep.fit_of(study, curve, part)
        if fitted is not None and math.isfinite(fitted.exponent):
            grows = f"time grows as {field} to the power of {sweep.exponent_text(fitted)}"
            lines.append(f"{name}: {grows}{over}")
        elif fitted is not None:
            lines.append(f"{name}: {sweep.exponent_text(fitted)}")
    return lines


def _as_data(outcome: Outcome, saved: str | None, measured: Sequence[Study]) -> dict[str, Any]:
    """Return the outcome for the JSON answer."""
    data = as_data(outcome, saved)
    for study in measured[-1:]:
        data |= {**study.request, **study.facts}
        for name in (sweep.POINTS, sweep.FITS, sweep.NUMBERS):
            table = {key: column.tolist() for key, column in study.tables.get(name, {}).items()}
            rows = zip(*table.values(), strict=True)
            data[name] = [dict(zip(table, row, strict=True)) for row in rows]
        data["wrong"] = sweep.wrong_arms(study)
        data["points_asked"] = study.request["points"]
    return data


COMMAND = Command(
    name="sweep", help=__doc__, arguments=_arguments, run=_run, tabular=True, drives=True
)
