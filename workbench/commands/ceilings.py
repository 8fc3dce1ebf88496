"""Print the highest measured rates of this device, or measure them again."""

from __future__ import annotations

import argparse

import msgspec

from sessions.ceilings import age, describe, lacking
from workbench import ceilings, protocol
from workbench.client import headless, runner_command
from workbench.commands._command import DONE, FAILED, Command, answer, answer_json, print_status
from workbench.commands._headless import Bar, as_data, exit_code, settle


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--measure", action="store_true", help="measure again, also if rates are stored"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _run(arguments: argparse.Namespace) -> int:
    heard: list[protocol.CeilingsFound] = []
    began_s: list[float] = []  # Unix time at t_s = 0, by the clock that the ceilings go by

    def watch(message: protocol.AnyMessage) -> None:
        progress_bar.watch(message)
        if isinstance(message, protocol.CeilingsFound):
            heard.append(message)
        elif isinstance(message, protocol.Catalogue):
            began_s.append(message.created)

    with Bar() as progress_bar:
        command = protocol.MeasureCeilings(anew=arguments.measure)
        outcome = headless.run(lambda _: command, watch=watch)
    settle(outcome, None)
    host_suffix = runner_command.host_suffix(outcome.session.environment)
    for why in dict.fromkeys(message.why for message in heard if message.why):
        print_status(f"warning{host_suffix}: {why}")
    last, code = heard[-1] if heard else None, exit_code(outcome)
    if last is None or last.ceilings is None or code != DONE:  # or no more than those kept before
        if arguments.json:
            answer_json(as_data(outcome, None))
        return FAILED if code == DONE else code
    if arguments.json:
        measured = msgspec.to_builtins(last.ceilings) | {"source": last.source}
        file = None if host_suffix or last.why else str(ceilings.path())
        answer_json(as_data(outcome, file) | measured)
    else:
        origin = "kept" if last.source == "kept" else "measured now"
        when = age(last.ceilings, began_s[-1] + last.t_s)
        # Another host's state folder may lie elsewhere.
        location = (
            "not stored" if last.why else f"kept{host_suffix}" if host_suffix else ceilings.path()
        )
        answer(f"{describe(last.ceilings)} ({origin}, {when}; {location})")
        for why in lacking(last.ceilings):
            answer(why)
    return DONE


COMMAND = Command(name="ceilings", help=__doc__, arguments=_arguments, run=_run, drives=True)
