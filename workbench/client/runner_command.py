"""The command that starts the runner: this Python's own, or a user's, for example through ssh.

A person's command comes from ``--runner`` or the environment, never from a session or a journal.
Its runner may be on another host: the paths of files that the runner reads or writes are then that
host's, and are sent as they were given.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

OPTION, VARIABLE = "--runner", "WORKBENCH_RUNNER"
# ``-P``: a file in the working directory must not replace a module of ours or of Python's.
HERE = (sys.executable, "-P", "-m", "workbench.runner")
HELP = (
    'command that starts the runner, for example "ssh HOST /path/to/python -m workbench.runner" to '
    "use the GPU of another host. Files of the runner (own models, data, states, traces, tuned "
    "tiles, ceilings) are then on that host; sessions, journals and noise floors are on this one. "
    f"Default: {VARIABLE}, or else a runner on this host"
)

_chosen: tuple[str, ...] = ()


@contextlib.contextmanager
def use(option: str | None) -> Iterator[None]:
    """Set the command of all runners: the option's, else the environment's.

    Raises ``ValueError`` with one sentence for text that is not a command.
    """
    global _chosen
    before, _chosen = _chosen, _named(option)
    try:
        yield
    finally:
        _chosen = before


def command() -> tuple[str, ...]:
    """Return the words of the command that starts a runner."""
    return _chosen or HERE


def is_custom() -> bool:
    """Return True if a person named the command, so that the runner may be on another host."""
    return bool(_chosen)


def shown(words: tuple[str, ...]) -> str:
    """Return the command as a person types it into a shell."""
    return shlex.join(words)


def split(text: str, source: str) -> tuple[str, ...]:
    """Return the words of a command; raises ``ValueError`` that names its source."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        reason = str(error)
        raise ValueError(f"{source}: {text!r} cannot be read: {reason[:1].lower()}{reason[1:]}"
                         ) from None  # fmt: skip
    if not words or not words[0] or "\0" in text:
        raise ValueError(
            f"{source}: {text!r} is not a command; expected a program and its arguments"
        )
    return words


def path(requested_path: Path) -> str:
    """Return a path for the runner: absolute, or unchanged if it may be another host's."""
    return str(requested_path) if is_custom() else str(requested_path.expanduser().absolute())


def host_suffix(environment: Mapping[str, str]) -> str:
    """Return `` on HOST`` where a person's command starts the runner; empty for a runner here."""
    return f" on {environment.get('host') or 'the host of the runner'}" if is_custom() else ""


def _named(option: str | None) -> tuple[str, ...]:
    if option is not None:
        return split(option, OPTION)
    text = os.environ.get(VARIABLE, "")
    return split(text, VARIABLE) if text else ()
