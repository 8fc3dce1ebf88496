"""The part of ``run`` and ``ab`` that takes the command line of a training script."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from sessions.columns import row_count
from sessions.model import Segment, Session
from sessions.numbers import counted
from sessions.tables import segments_table
from workbench import protocol
from workbench.client import headless, runner_command
from workbench.client.headless import Outcome
from workbench.commands._command import (
    FAILED,
    INTERRUPTED,
    UNDECIDED,
    Mistaken,
    answer_json,
    print_status,
)
from workbench.commands._headless import Bar, as_data, exit_code, settle
from workbench.commands._tables import evidence_lines, render
from workbench.instrument import settings
from workbench.scripts.comparison import ScriptComparison
from workbench.scripts.plan import FIRST_STEP_S, WATCHER, ScriptPlan

BUDGET_S = 600.0  # budget of a comparison: each block is a process
SETTINGS_HELP = "; ".join(
    f"{setting.name}={'|'.join(option for option in setting.options if option != settings.DEFAULT)}"
    for setting in settings.SETTINGS.values()
)
RUN_HELP = (
    "workbench run [-o FILE.h5] [--steps N] [--toggle NAME=OPTION ...] -- COMMAND runs an "
    "unchanged training script, for example `workbench run -o a.h5 -- python train.py --lr "
    "3e-4`. A step ends with each call of an optimizer, or with each iteration of `for batch in "
    "workbench.watch(loader)`. --steps or --seconds ends the script; its seconds begin with its "
    f"first step. With --seconds, a script that makes no step in {FIRST_STEP_S / 60:g} minutes is "
    "ended and has failed. The exit code is the script's. Settings of a script (--toggle or "
    f"--set): {SETTINGS_HELP}."
)
AB_HELP = (
    "workbench ab --a NAME=OPTION,... --b NAME=OPTION,... -- COMMAND compares two sets of settings "
    "of a training script (see `workbench run --help`). Each block is a new process; the blocks "
    "run in random pairs. A verdict needs at least 8 pairs; --steps N makes the processes short. "
    "A process that takes more than five times as long as the longest before, plus a minute, is "
    f"ended, and so is a first one that makes no step in {FIRST_STEP_S / 60:g} minutes. "
    "The results of a script are not checked."
)
# Options of models that a script has no use for, by the name of their argument.
_OF_MODELS = {
    "family": "a family",
    "model": "--model",
    "preset": "--preset",
    "workload": "--workload",
    "seed": "--seed",
    "data": "--data",
    "check": "--check",
    "pairing_share": "--pairing-share",
    "save_state": "--save-state",
    "load_state": "--load-state",
    "builds": "--builds",
}


def run(arguments: argparse.Namespace, summary: Callable[[Segment], dict[str, Any]]) -> int:
    """Run the script once and return its exit code; ``summary``: of a segment, for programs."""
    _check(arguments)
    plan = ScriptPlan(
        arguments.script,
        _chosen(arguments, ""),
        steps=arguments.steps,
        seconds=arguments.seconds,
        aside=arguments.json,
    )
    outcome = headless.run_plan(plan, watch=_print_journal, command=WATCHER)
    _conclude(outcome, plan.failure)
    saved = settle(outcome, arguments.output)
    session = outcome.session
    if arguments.json:
        segments = [summary(segment) for segment in session.segments]
        answer_json({**as_data(outcome, saved), "exit_code": plan.exit_code, "segments": segments})
    elif any(row_count(segment.steps) for segment in session.segments):
        for line in _lines(session, arguments.verbose):
            print_status(line)
    if saved and not arguments.json:
        print_status(f"saved {saved}")
    return _code(outcome, plan.exit_code)


def compare(arguments: argparse.Namespace) -> tuple[Outcome, int]:
    """Compare two sets of settings; return the outcome, and an exit code if a process failed.

    It is the script's exit code, unless that one would mean that the verdict is undecided.
    """
    _check(arguments)
    plan = ScriptComparison(
        arguments.script,
        [_chosen(arguments, arguments.a), _chosen(arguments, arguments.b)],
        budget_s=arguments.budget or BUDGET_S,
        region=arguments.region / 100,
        order=arguments.order,
        seed=arguments.seed,
        steps=arguments.steps,
    )
    with Bar(seconds=arguments.budget or BUDGET_S) as progress_bar:
        outcome = headless.run_plan(plan, watch=progress_bar.watch, command=WATCHER)
    failure = plan.failure
    if failure is None and not outcome.session.comparisons and outcome.reason == "done":
        failure = protocol.Failure(
            kind=protocol.SCRIPT_FAILED,
            sentence="There is no verdict: the script made no steps.",
            fix="`workbench run -- COMMAND` says why.",
        )
    _conclude(outcome, failure)
    return outcome, FAILED if plan.exit_code == UNDECIDED else plan.exit_code


def _check(arguments: argparse.Namespace) -> None:
    """Raise ``Mistaken`` for an argument that a script cannot have."""
    if not arguments.script:
        raise Mistaken("there is no command after --; write `-- python train.py`")
    if runner_command.is_custom():
        raise Mistaken(f"a script runs on this machine; leave {runner_command.OPTION} out")
    for name, title in _OF_MODELS.items():
        default = arguments.parser.get_default(name)
        if name == "seed" and arguments.command.name == "ab":
            continue  # in ``ab``, it is the seed of the order of pairs
        if getattr(arguments, name, default) != default:
            raise Mistaken(f"{title} is for the workbench's own models, not for a script after --")


def _chosen(arguments: argparse.Namespace, side: str) -> dict[str, str]:
    """Return the settings of all options that name some; raise ``Mistaken`` for unknown ones."""
    words: Sequence[str] = [*arguments.toggle, *arguments.set, side]
    try:
        return settings.read(",".join(words))
    except ValueError as error:
        raise Mistaken(str(error)) from None


def _print_journal(message: protocol.AnyMessage) -> None:
    """Report a journal that cannot be written when it happens: the script may run for days."""
    if isinstance(message, protocol.Failure) and message.kind == protocol.JOURNAL:
        print_status(message.sentence_with_fix)


def _conclude(outcome: Outcome, failure: protocol.Failure | None) -> None:
    session = outcome.session
    if session.segments:
        session.title = session.segments[0].configuration.title
    if failure is not None:
        outcome.failures.append(failure)
        if outcome.reason == "done":
            outcome.reason = "failed"


def _code(outcome: Outcome, script_code: int) -> int:
    """Return the exit code: the script's, unless it was interrupted or not measured."""
    if outcome.reason == "cancelled":
        return INTERRUPTED
    return script_code or exit_code(outcome)


def _lines(session: Session, verbose: bool) -> list[str]:
    lines = [render(segments_table(session))]
    for segment in session.segments:
        ledger = segment.ledger
        if "input_wait_share" in ledger:
            share, wait_ms = 100 * ledger["input_wait_share"], ledger["input_wait_ms"]
            lines.append(f"waiting for input: {share:.1f} % of the mean step ({wait_ms:.2f} ms)")
        if recompiles := ledger.get("recompiles"):
            lines.append(
                f"recompiles: {recompiles} of {counted(int(ledger.get('graphs', 0)), 'graph')}"
            )
        lines += evidence_lines(segment.evidence, verbose)
    return lines
