"""The command line's commands, one file each; the folder is the registry."""

from __future__ import annotations

import argparse

from workbench import plugins
from workbench.commands._command import Command

__all__ = ["Command", "all_commands"]


def all_commands() -> dict[str, Command]:
    """Return every command by name, those of plug-ins last."""
    return plugins.gather(__name__, "COMMAND", Command, "commands", _check)


def _check(command: Command) -> None:
    """Raise an error unless the parser can take the command's arguments."""
    command.arguments(argparse.ArgumentParser(prog=command.name))
