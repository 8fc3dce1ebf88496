"""What a command is, and how one tells a person that it could not be done."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessions.errors import SessionError

if TYPE_CHECKING:
    from sessions.model import Session

DONE, FAILED, MISTAKEN = 0, 1, 2


class Mistaken(Exception):  # noqa: N818 - the person's, not the program's
    """What was asked cannot be: one sentence, exit code 2."""


class Failed(Exception):  # noqa: N818 - carries its sentence
    """It went wrong while it was done: one sentence, exit code 1."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """``workbench NAME``: ``help`` is one line, ``run`` returns the exit code."""

    name: str
    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def load(path: Path) -> Session:
    """The session of a file that was named; raises ``Mistaken`` where there is none."""
    from sessions import hdf5  # slow to import, and the window starts through this package too

    try:
        return hdf5.load(path)
    except SessionError:
        with contextlib.suppress(PermissionError):  # which the first error names
            if not path.exists():
                raise Mistaken(f"{path}: there is no such file") from None
        raise


def say(text: str) -> None:
    """A line for the person, beside the result."""
    sys.stderr.write(f"{text}\n")


def answer(text: str) -> None:
    """The result itself."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def answer_json(result: Any) -> None:
    """The result as JSON, for programs; NaN becomes null."""
    answer(json.dumps(_finite(result), indent=2, ensure_ascii=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and value != value:
        return None
    return value
