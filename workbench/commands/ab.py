"""Compare two configurations in alternating blocks: FASTER, SLOWER, SAME or UNDECIDED, and why."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from sessions.model import Judgement, PairedComparison, Session
from sessions.studies import prediction
from sessions.verdicts.arm_results import wrong_arms
from sessions.verdicts.energy import energy_line
from sessions.verdicts.expectation import at_most
from sessions.verdicts.multiple_comparisons import judgement_of
from sessions.verdicts.verdict import LEAST_BUILDS, region_of
from sessions.verdicts.verdict_words import (
    budget_of,
    headline,
    memory_words,
    numerics_lines,
    ratio_line,
    remarks,
)
from workbench import calibration, protocol
from workbench.client import headless
from workbench.client.headless import Outcome
from workbench.commands import _script
from workbench.commands._arguments import (
    budget_argument,
    positive_int,
    region_argument,
    result_arguments,
    verbose_argument,
    whole_number,
)
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
from workbench.commands._headless import as_data, drive, exit_code, settle
from workbench.commands._tables import evidence_lines
from workbench.commands.run import (
    configuration_arguments,
    configure,
    summary,
    with_toggles,
)

BUDGET_S = 20.0
AUTO = "auto"
EXPECTATIONS = {
    "faster": ("FASTER",),
    "slower": ("SLOWER",),
    "same": ("SAME",),
    "not-slower": ("FASTER", "SAME"),  # or an interval that lies below the edge of SLOWER
}


def _arguments(parser: argparse.ArgumentParser) -> None:
    configuration_arguments(parser)
    parser.epilog = _script.AB_HELP
    for side in "ab":
        parser.add_argument(
            f"--{side}",
            default="",
            metavar="NAME=OPTION,...",
            help=f"toggles of {side.upper()} only, or @SET; without --a and --b: A against A",
        )
    budget_argument(
        parser, BUDGET_S, f"longest time of alternating (of a script: {_script.BUDGET_S:g})"
    )
    parser.set_defaults(budget=None)
    parser.add_argument(
        "--steps", type=positive_int, help="of a script: end each process after this many steps"
    )
    region_argument(parser)
    parser.add_argument("--order", choices=("random", "abba"), default="random")
    parser.add_argument(
        "--builds",
        type=_build_count,
        default=0,
        metavar="N",
        help="build both N times, so that the interval includes differences between builds; 1: "
        "build once; auto, the default: several times if building is cheap for the budget",
    )
    parser.add_argument(
        "--expect",
        choices=EXPECTATIONS,
        help="exit with 1 if the verdict is another one, with 3 if it is UNDECIDED; exit with 2, "
        "without measuring, if A and B are different models: their ratio is no speed-up",
    )
    parser.add_argument(
        "--no-energy",
        action="store_true",
        help="do not measure the energy of a step, which needs up to half of the budget more",
    )
    verbose_argument(parser)
    result_arguments(parser)


def _build_count(text: str) -> int:
    """Read a number of builds; raises ``ArgumentTypeError``."""
    if text == AUTO:
        return 0
    count = whole_number(text)
    if count is None or count in (0, 2):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected {AUTO}, 1 or at least {LEAST_BUILDS} (two builds are too few to "
            "estimate how far builds differ)"
        )
    return count


def _run(arguments: argparse.Namespace) -> int:
    check_session(arguments.output)
    if arguments.script is not None:
        outcome, code = _script.compare(arguments)
        reported = _report(arguments, outcome)
        return code or reported
    if arguments.steps is not None:
        raise Mistaken(
            "--steps is for a script after --; a comparison of models ends automatically"
        )

    def begin(catalogue: protocol.Catalogue) -> protocol.Compare:
        configuration = configure(catalogue, arguments)
        command = protocol.Compare(
            base=with_toggles(catalogue, configuration, arguments.a),
            other=with_toggles(catalogue, configuration, arguments.b),
            budget_s=arguments.budget or BUDGET_S,
            region=arguments.region / 100,
            order=arguments.order,
            build_count=arguments.builds,
            seed=arguments.seed,
            predict=True,
            energy=not arguments.no_energy,
            require_same_work=bool(arguments.expect),
        )
        return calibration.respected(catalogue, command)

    return _report(arguments, measure(begin))


def _report(arguments: argparse.Namespace, outcome: Outcome) -> int:
    """Print and save the outcome, and return the exit code."""
    saved = settle(outcome, arguments.output)
    comparisons = outcome.session.comparisons
    if arguments.json:
        answer_json(_as_data(outcome, saved))
    else:
        if comparisons:
            answer("\n".join(_lines(outcome.session, comparisons[-1], arguments.verbose)))
        if saved:
            answer(f"saved {saved}")
    return _code(arguments, outcome)


def measure(begin: headless.Chooser) -> Outcome:
    """Run the comparison that ``begin`` makes of the catalogue, with a progress bar."""
    outcome = drive(begin)
    if outcome.session.segments:
        outcome.session.title = f"{outcome.session.segments[0].configuration.title}: A/B"
    return outcome


def _as_data(outcome: Outcome, saved: str | None) -> dict[str, Any]:
    """Return the outcome for the JSON answer."""
    session = outcome.session
    data = as_data(outcome, saved) | {"verdict": None}
    if session.comparisons:
        comparison = session.comparisons[-1]
        built = msgspec.to_builtins(comparison)
        facts = built.pop("facts")
        data |= {**facts, **built, "pairs": facts.get("pairs", 0), "block_pairs": built["pairs"]}
        data["order_kind"] = facts.get("order")
        data["headline"] = headline(comparison)
        data["prediction"] = msgspec.to_builtins(prediction.of(comparison))
        data["residual"] = prediction.residual(comparison)
        data["wrong"] = [arm for arm, _ in wrong_arms(comparison)]
        data["arms"] = [summary(session.segments[index]) for index in facts.get("segments", [])]
    return data


def _lines(session: Session, comparison: PairedComparison, verbose: bool) -> list[str]:
    lines = [headline(comparison), ratio_line(comparison)]
    lines += [*filter(None, [prediction.outcome(comparison)]), *_basis(comparison), ""]
    for side, arm in zip("AB", comparison.arms, strict=True):
        lines.append(f"{side}: {arm}")
    if comparison.facts.get("identical"):
        lines.append("A and B are the same configuration, built twice.")
    lines += remarks(comparison)
    facts = comparison.facts
    if comparison.verdict == "UNDECIDED" and facts.get("more_s") is not None:
        budget_s = budget_of(facts["more_s"], facts["seconds"])
        lines.append(f"A new comparison needs --budget {budget_s:.0f}: no earlier pairs count.")
    lines.append(
        f"order {comparison.facts.get('order')}, seed {comparison.facts.get('seed')}: "
        + "".join("AB"[arm] for arm in comparison.order)
    )
    lines += [*filter(None, [energy_line(comparison)]), *numerics_lines(comparison)]
    for side in "AB":
        if memory := memory_words(comparison, side, session.segments):
            lines.append(f"{side}: {memory}")
    for side, index in zip("AB", comparison.facts.get("segments", []), strict=False):
        lines += evidence_lines(session.segments[index].evidence, verbose, f"{side}: ")
    return lines


def _basis(comparison: PairedComparison) -> list[str]:
    """Return the basis of the prediction, if any; ``outcome`` says why there is none."""
    predicted = prediction.of(comparison)
    known = predicted is not None and predicted.ratio is not None
    return [f"the roofline estimate: {predicted.text}"] if known and predicted is not None else []


def _code(arguments: argparse.Namespace, outcome: Outcome) -> int:
    code = exit_code(outcome)
    if code != DONE:
        return code
    (comparison,) = outcome.session.comparisons
    expectation, judgement = arguments.expect, judgement_of(comparison)
    shown = is_expected(expectation, judgement, region_of(comparison)) if expectation else True
    if not shown and expectation:
        expected = " or ".join(EXPECTATIONS[expectation])
        print_status(f"expected {expected}, but the verdict is {comparison.verdict}")
    if wrong_arms(comparison) or comparison.facts.get("invalid"):
        return FAILED
    return {True: DONE, False: FAILED, None: UNDECIDED}[shown]


def is_expected(expectation: str, judgement: Judgement, region: float) -> bool | None:
    """Return whether the judgement is one of ``EXPECTATIONS``; None while that is undecided."""
    if judgement.verdict in EXPECTATIONS[expectation]:
        return True
    if expectation == "not-slower" and at_most(judgement, 1 + region, region).holds:
        return True
    return None if judgement.verdict == "UNDECIDED" else False


COMMAND = Command(
    name="ab", help=__doc__, arguments=_arguments, run=_run, drives=True, takes_script=True
)
