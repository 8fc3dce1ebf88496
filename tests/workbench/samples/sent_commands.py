"""Commands that a program sent to its runner."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Kind = TypeVar("Kind")


def only(commands: Iterable[object], kind: type[Kind]) -> Kind:
    """Return the one command of a kind; raises ``ValueError`` unless there is exactly one."""
    (command,) = (command for command in commands if isinstance(command, kind))
    return command
