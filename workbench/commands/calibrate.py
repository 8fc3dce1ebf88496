"""Compare identical arms on this machine and store how much they seem to differ."""

from __future__ import annotations

import argparse

import msgspec

from sessions.verdicts.verdict_words import ratio_line
from workbench import calibration, protocol
from workbench.commands._arguments import budget_argument
from workbench.commands._command import DONE, Command, Failed, answer, answer_json
from workbench.commands._headless import as_data, exit_code, settle
from workbench.commands.ab import measure
from workbench.commands.run import configuration_arguments, configure

BUDGET_S = 60.0


def _arguments(parser: argparse.ArgumentParser) -> None:
    configuration_arguments(parser, family_default="hydra")
    budget_argument(parser, BUDGET_S)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _run(arguments: argparse.Namespace) -> int:
    catalogues: list[protocol.Catalogue] = []

    def begin(catalogue: protocol.Catalogue) -> protocol.Compare:
        catalogues.append(catalogue)
        configuration = configure(catalogue, arguments)
        return protocol.Compare(
            base=configuration,
            other=configuration,
            budget_s=arguments.budget,
            seed=arguments.seed,
            energy=False,
        )

    outcome = measure(begin)
    settle(outcome, None)
    if exit_code(outcome) != DONE:
        if arguments.json:
            answer_json(as_data(outcome, None))
        return exit_code(outcome)
    (comparison,) = outcome.session.comparisons
    configuration = outcome.session.segments[0].configuration
    try:
        floor = calibration.calibrated(catalogues[0], comparison, configuration)
    except ValueError as error:
        if arguments.json:
            answer_json(as_data(outcome, None))
        raise Failed(f"not calibrated: {error}", answered=arguments.json) from None
    try:
        calibration.store(floor)
    except OSError as error:
        raise Failed(
            f"{calibration.unstored(error)}. The result was: {calibration.describe(floor)}"
        ) from None
    if arguments.json:
        answer_json(as_data(outcome, str(calibration.path())) | msgspec.to_builtins(floor))
    else:
        answer(f"{calibration.describe(floor)}\n{ratio_line(comparison)}")
    return DONE


COMMAND = Command(name="calibrate", help=__doc__, arguments=_arguments, run=_run, drives=True)
