"""The command line: ``workbench`` opens the window, ``workbench COMMAND`` works without one.

Exit codes: 0 done, 1 failed, 2 a mistake in what was asked.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence

from sessions.errors import SessionError
from workbench import commands
from workbench.commands._command import DONE, FAILED, MISTAKEN, Command, Failed, Mistaken, say

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    names = [module.name for module in pkgutil.iter_modules(commands.__path__)]
    wants_command = arguments and (arguments[0] in names or arguments[0] in ("-h", "--help"))
    if not wants_command or arguments[0].startswith("_"):
        if arguments and not arguments[0].startswith("-") and "." not in arguments[0]:
            say(f"workbench: no command {arguments[0]!r}; expected one of {_visible(names)}")
            return MISTAKEN
        from workbench.ui.app import run  # Qt: only where a window is wanted

        opened: int = run(arguments)
        return opened
    parsed = _parser(_visible(names)).parse_args(arguments)
    try:
        code: int = parsed.command.run(parsed)
    except Mistaken as mistake:
        say(f"workbench {parsed.command.name}: {mistake}")
        return MISTAKEN
    except (Failed, SessionError) as failure:
        say(f"workbench {parsed.command.name}: {failure}")
        return FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        return DONE  # whoever read our output has seen enough
    return code


def _visible(names: Sequence[str]) -> list[str]:
    return [name for name in names if not name.startswith("_")]


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="workbench",
        description="Without a command, opens the window: workbench [SESSION.h5 ...] "
        "[--replay JOURNAL].",
    )
    choices = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in names:
        command: Command = importlib.import_module(f"workbench.commands.{name}").COMMAND
        sub = choices.add_parser(name, help=command.help, description=command.help)
        command.arguments(sub)
        sub.set_defaults(command=command)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
