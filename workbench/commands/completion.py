"""Print a script with which a shell completes commands and options (bash, zsh, fish, ...)."""

from __future__ import annotations

import argparse

from workbench.commands._command import DONE, Command, answer, answer_json

EPILOG = (
    "bash: workbench completion bash > ~/.local/share/bash-completion/completions/workbench; "
    "zsh: workbench completion zsh > a file _workbench in a folder of $fpath"
)


def _arguments(parser: argparse.ArgumentParser) -> None:
    from shtab import SUPPORTED_SHELLS

    parser.epilog = EPILOG
    parser.add_argument("shell", choices=SUPPORTED_SHELLS, help="the shell that reads the script")
    parser.add_argument("--json", action="store_true", help="print the script as JSON")


def _run(arguments: argparse.Namespace) -> int:
    import shtab

    script = shtab.complete(arguments.program(), arguments.shell)
    if arguments.json:
        answer_json({"reason": "done", "shell": arguments.shell, "script": script})
    else:
        answer(script)
    return DONE


COMMAND = Command(name="completion", help=__doc__, arguments=_arguments, run=_run)
