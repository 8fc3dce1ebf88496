"""List the toggles of a family: the options of each, and why some cannot be used here.

Your own model (--model) is built, because its modules decide on some options.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from itertools import groupby

import msgspec

from workbench import protocol
from workbench.commands._command import (
    DONE,
    MISTAKE,
    MISTAKEN,
    Command,
    Failed,
    Mistaken,
    answer,
    answer_json,
    print_status,
)
from workbench.commands._headless import query_runner
from workbench.commands.run import configuration_arguments, configure
from workbench.protocol.catalogue import Blocked, ToggleInfo

WIDTH = 90  # characters in a line of option names
Reasons = Mapping[str, Mapping[str, Blocked]]  # by toggle and option


def _arguments(parser: argparse.ArgumentParser) -> None:
    configuration_arguments(parser, family_default="hydra")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def _run(arguments: argparse.Namespace) -> int:
    answers: list[protocol.AnyMessage] = []

    def question(catalogue: protocol.Catalogue) -> protocol.Command:
        answers.append(catalogue)
        return protocol.Inspect(configuration=configure(catalogue, arguments))

    reply = query_runner(question, protocol.Availability)
    if isinstance(reply, protocol.Failure):
        if reply.kind == "model":  # the file's own error
            print_status(f"The log:\n{reply.detail.rstrip()}")
            raise Mistaken(reply.sentence_with_fix)
        raise Failed(reply.sentence_with_fix)
    if not isinstance(reply, protocol.Availability):
        raise Failed("the runner ended before it answered; `workbench doctor` shows the reason")
    if reply.problems and not reply.blocked:  # there is no model to ask about its toggles
        raise Mistaken(" ".join(reply.problems))
    (catalogue,) = answers
    assert isinstance(catalogue, protocol.Catalogue)
    available = [toggle for toggle in catalogue.toggles if not _is_absent(toggle, reply.blocked)]
    if arguments.json:
        answer_json(
            {
                "reason": MISTAKE if reply.problems else "done",
                "configuration": msgspec.to_builtins(reply.configuration),
                "problems": reply.problems,
                "toggles": [
                    {
                        **msgspec.to_builtins(toggle),
                        "blocked": msgspec.to_builtins(reply.blocked.get(toggle.name, {})),
                    }
                    for toggle in available
                ],
            }
        )
    else:
        answer("\n".join(_lines(reply, available)))
    return MISTAKEN if reply.problems else DONE


def _is_absent(toggle: ToggleInfo, blocked: Reasons) -> bool:
    """Return True if the family has nothing that any option of the toggle acts on."""
    reasons = blocked.get(toggle.name, {})
    options = [option.name for option in toggle.options if option.name != toggle.default]
    return all(name in reasons and reasons[name].absent for name in options)


def _lines(reply: protocol.Availability, toggles: Sequence[ToggleInfo]) -> list[str]:
    """Format the usable options by group, then the blocked ones with their reasons."""
    lines = [
        f"{reply.configuration.title}: {len(toggles)} toggles, as --toggle NAME=OPTION "
        "(the default is first)"
    ]
    lines += reply.problems
    width = max((len(toggle.name) for toggle in toggles), default=0)
    ordered = sorted(toggles, key=lambda toggle: toggle.group)
    for group, members in groupby(ordered, key=lambda toggle: toggle.group):
        lines += ["", group]
        for toggle in members:
            reasons = reply.blocked.get(toggle.name, {})
            options = [option.name for option in toggle.options if option.name not in reasons]
            if toggle.default in options:
                options.insert(0, options.pop(options.index(toggle.default)))
            lines.append(f"  {toggle.name:<{width}}  {', '.join(options)}")
    if blocked := _blocked_lines(reply.blocked, toggles):
        lines += ["", "Blocked here", *blocked]
    return lines


def _blocked_lines(blocked: Reasons, toggles: Sequence[ToggleInfo]) -> list[str]:
    """Format each reason once, with all options that it blocks below."""
    options_by_reason: dict[str, dict[str, list[str]]] = {}
    for toggle in toggles:
        for option, reason in blocked.get(toggle.name, {}).items():
            names = options_by_reason.setdefault(reason.reason_with_fix, {})
            names.setdefault(toggle.name, []).append(option)
    lines = []
    for sentence, names in options_by_reason.items():
        labels = " ".join(f"{name}={','.join(options)}" for name, options in names.items())
        wrapped = textwrap.wrap(labels, WIDTH, break_long_words=False, break_on_hyphens=False)
        lines += [f"  {sentence}", *(f"      {line}" for line in wrapped)]
    return lines


COMMAND = Command(name="toggles", help=__doc__, arguments=_arguments, run=_run, drives=True)
