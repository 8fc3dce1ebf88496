"""The command line: ``workbench`` opens the window, ``workbench COMMAND`` works without one.

Exit codes: 0 done; 1 failed; 2 the request is wrong, or the session has no data for it; 3
undecided: the measurements neither show nor refute what was expected, and a longer run may decide;
130 interrupted (Ctrl+C, SIGTERM, SIGHUP): the measurements so far are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from sessions.errors import Lacking, SessionError
from sessions.storage import atomic_write
from workbench import crash_log, interrupts, plugins
from workbench.client import runner_command
from workbench.commands import _tables, all_commands
from workbench.commands._command import (
    FAILED,
    INTERRUPTED,
    MISTAKE,
    MISTAKEN,
    Failed,
    Mistaken,
    answer,
    answer_failure,
    failure_as_json,
    print_status,
    report_skipped,
)

DISTRIBUTION = "gpu-optimization-workbench"
SCRIPT = "--"  # the command line of a training script follows
WITHOUT_COMMAND = ("-h", "--help", "--version")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code.

    Exceptions that no code expects pass through: ``workbench.__main__`` reports them.
    """
    _print_what_can_be_printed()
    arguments = list(sys.argv[1:] if argv is None else argv)
    interrupts.at_exit(atomic_write.discard_unfinished)
    arguments, script = _split(arguments)
    if "--json" in arguments:
        interrupts.set_last_words(failure_as_json("cancelled"))
    names = plugins.names("workbench.commands", "commands")
    if not arguments or arguments[0] not in (*names, *WITHOUT_COMMAND):
        if arguments and not arguments[0].startswith("-") and not _is_file(arguments[0]):
            sentence = f"unknown command {arguments[0]!r}; expected one of {', '.join(names)}"
            print_status(f"workbench: {sentence}")
            _answer(argparse.Namespace(json="--json" in arguments), MISTAKE, sentence)
            return MISTAKEN
        from workbench.ui.app import run  # Qt: only where a window is wanted

        opened: int = run(arguments)
        return opened
    parsed = argparse.Namespace(json="--json" in arguments)  # until they are read
    program = "workbench" if arguments[0] in WITHOUT_COMMAND else f"workbench {arguments[0]}"
    reported: list[plugins.Plugin] = []
    try:
        if arguments[0] == "--version":
            answer(f"workbench {importlib.metadata.version(DISTRIBUTION)}")
            return 0
        parser = _parser(arguments)
        report_skipped(reported := plugins.loaded())
        parsed, unknown = parser.parse_known_args(arguments)
        parsed.script = script
        if unknown:  # said by the command's own parser, whose usage tells what there is
            parsed.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        with _runner(parsed), _tables.as_markdown(getattr(parsed, "markdown", False)):
            code: int = parsed.command.run(parsed)
    except (Mistaken, Lacking) as mistake:
        print_status(f"{program}: {mistake}")
        code = MISTAKEN
        _answer(parsed, MISTAKE, str(mistake))
    except (Failed, SessionError) as failure:
        print_status(f"{program}: {failure}")
        code = FAILED
        if not getattr(failure, "answered", False):
            _answer(parsed, "failed", str(failure))
    except KeyboardInterrupt:
        code = INTERRUPTED
        _answer(parsed, "cancelled")
    report_skipped(plugin for plugin in plugins.loaded() if plugin not in reported)
    _drop_what_is_unwritten()
    return code


def report_defect(error: BaseException, log: Path | None) -> int:
    """Report an exception that no code expected, and return the exit code.

    ``log`` is the file that has its traceback.
    """
    arguments = sys.argv[1:]
    name = arguments[0] if arguments and arguments[0].isalpha() else ""
    sentence = (
        f"an error inside the program ended it ({crash_log.describe(error)}). "
        f"{crash_log.where(log)}"
    )
    print_status(f"{f'workbench {name}'.strip()}: {sentence}")
    _answer(argparse.Namespace(json="--json" in arguments), "failed", sentence)
    _drop_what_is_unwritten()
    return FAILED


def _split(arguments: list[str]) -> tuple[list[str], list[str] | None]:
    """Split the arguments into the workbench's own and a script's command line, if there is one.

    For other commands "--" ends the options, so that the name of a file may begin with "-".
    """
    if SCRIPT not in arguments:
        return arguments, None
    command = all_commands().get(arguments[0])
    if command is not None and not command.takes_script:
        return arguments, None
    index = arguments.index(SCRIPT)
    return arguments[:index], arguments[index + 1 :]


def _is_file(word: str) -> bool:
    """Return True if a word that is no command names a session, by its suffix or as a file."""
    return "." in word or Path(word).is_file()


def _looks_like_dashed_file(word: str) -> bool:
    """Return True if argparse takes ``word`` for an option, but it has a file's suffix."""
    return word[:1] == "-" and word[1:2] not in ("-", "o") and Path(word).suffix[1:2].isalpha()


@contextlib.contextmanager
def _runner(parsed: argparse.Namespace) -> Iterator[None]:
    """Let the command drive the requested runner; raises ``Mistaken``."""
    with contextlib.ExitStack() as stack:
        if parsed.command.drives:
            try:
                stack.enter_context(runner_command.use(parsed.runner))
            except ValueError as error:
                raise Mistaken(str(error)) from None
        yield


def _answer(parsed: argparse.Namespace, reason: str, sentence: str = "") -> None:
    """Print the end of the command for a program that requested JSON; it may have gone."""
    if getattr(parsed, "json", False):
        with contextlib.suppress(Failed):
            answer_failure(reason, sentence)


def _print_what_can_be_printed() -> None:
    """Print "?" for characters that the terminal's encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _drop_what_is_unwritten() -> None:
    """Drop unwritten output, or Python would try again at exit and end with exit code 120."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class _Parser(argparse.ArgumentParser):
    """Parser that reports errors in the command ``line`` as JSON too, for programs."""

    line: Sequence[str] = ()

    def print_help(self, file: Any = None) -> None:
        """Print the help as the command's result, which must arrive."""
        answer(self.format_help())

    def error(self, message: str) -> NoReturn:
        """Report the error and exit with 2."""
        words = itertools.takewhile(lambda word: word != SCRIPT, self.line)
        if dashed := next(filter(_looks_like_dashed_file, words), None):
            message += f" ({dashed} was taken for an option; for the file, write ./{dashed})"
        _answer(argparse.Namespace(json="--json" in self.line), MISTAKE, message)
        super().error(message)


def _parser(line: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return a parser of this command line, or else of every command."""
    parser = _Parser(
        prog="workbench",
        description="Without a command, opens the window: workbench [SESSION.h5 ...] "
        "[--replay JOURNAL] [--runner COMMAND]. workbench --version prints the version.",
    )
    choices = parser.add_subparsers(required=True, metavar="COMMAND")
    commands = all_commands()
    chosen = line[:1] if line and line[0] in commands else commands
    for name in chosen:
        command = commands[name]
        sub = choices.add_parser(name, help=command.help, description=command.help)
        sub.line = line
        command.arguments(sub)
        if command.drives:
            sub.add_argument(runner_command.OPTION, metavar="COMMAND", help=runner_command.HELP)
        if command.tabular and "--markdown" not in sub._option_string_actions:
            sub.add_argument(_tables.OPTION, action="store_true", help=_tables.HELP)
        sub.set_defaults(command=command, parser=sub, program=_parser)
    return parser
