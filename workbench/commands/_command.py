"""The descriptor of a command, its answers, and its errors for people."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessions.errors import SessionError
from sessions.plain_text import json_escaped, plain
from sessions.storage import atomic_write, seal
from sessions.tracing.files import is_foreign
from workbench import interrupts, plugins
from workbench.client import runner_command
from workbench.titles import Titles

if TYPE_CHECKING:
    from sessions.model import Session
    from workbench.plots import Run

DONE, FAILED, MISTAKEN, UNDECIDED, INTERRUPTED = 0, 1, 2, 3, interrupts.INTERRUPTED
MISTAKE = "mistake"  # reason in the JSON answer if nothing could begin


class Mistaken(Exception):  # noqa: N818 - the person's, not the program's
    """The request is impossible: one sentence, exit code 2."""


class Failed(Exception):  # noqa: N818 - carries its sentence
    """The request failed: one sentence, exit code 1.

    ``answered``: the JSON answer was written already, or cannot be.
    """

    def __init__(self, sentence: str, *, answered: bool = False) -> None:
        super().__init__(sentence)
        self.answered = answered


@dataclass(frozen=True, kw_only=True)
class Command:
    """``workbench NAME``: ``help`` is one line, ``run`` returns the exit code.

    What ``drives`` a runner takes ``--runner`` too. ``takes_script``: words behind ``--`` are the
    command line of a training script, as ``script`` of the arguments. What is ``tabular`` prints
    tables, and takes ``--markdown``.
    """

    name: str
    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    drives: bool = False
    takes_script: bool = False
    tabular: bool = False


def load(path: Path) -> Session:
    """Load the session of a file, or of another profiler's trace.

    Raises ``Mistaken`` if there is no such file, and ``SessionError`` if it is no session.
    """
    from sessions.storage import foreign, hdf5

    try:
        return foreign.load(path) if is_foreign(path) else hdf5.load(path)
    except SessionError as error:
        with contextlib.suppress(OSError):  # the first error has the reason
            if not path.exists():
                raise Mistaken(f"{path}: there is no such file") from None
            if not path.is_file():
                raise Mistaken(str(error)) from None
        raise


def load_together(paths: Sequence[Path]) -> list[Session]:
    """Load the sessions to compare, titled by their files; their own titles may repeat."""
    from sessions.verdicts.comparison import MOST

    if not 2 <= len(paths) <= MOST:
        raise Mistaken(
            f"compare 2 to {MOST} sessions at a time, not {len(paths)}: name as many files"
        )
    sessions = [load(path) for path in paths]
    for name, session in zip(names(paths), sessions, strict=True):
        session.title = name
    return sessions


def names(paths: Sequence[Path]) -> list[str]:
    """Return a name for each file: its stem, or its path if two different files share a stem."""
    files: dict[str, set[Path]] = {}
    for path in paths:
        files.setdefault(_stem(path), set()).add(path)
    return [_stem(path) if len(files[_stem(path)]) == 1 else str(path) for path in paths]


def _stem(path: Path) -> str:
    """Return a file's name without its suffix; a compressed trace has two."""
    return (path.with_suffix("") if path.suffix == ".gz" else path).stem


def runs_of(sessions: Sequence[Session], labels: Sequence[str]) -> list[Run]:
    """Return the sessions as runs of plots, with these labels and the sessions' own titles."""
    from workbench.plots import Run  # Qt: only to draw

    return [
        Run(session, label, position, titled=Titles(session.titles).of)
        for position, (session, label) in enumerate(zip(sessions, labels, strict=True))
    ]


def answer_written(arguments: argparse.Namespace, **facts: Any) -> None:
    """Tell the file that a command wrote of its ``files``; to programs with these facts too."""
    if not arguments.json:
        answer(str(arguments.output))
        return
    answer_json(
        {
            "reason": "done",
            "file": str(arguments.output),
            "bytes": arguments.output.stat().st_size,
            "sessions": [str(path) for path in arguments.files],
            **facts,
        }
    )


def check_output(path: Path, suffixes: Collection[str] = ()) -> None:
    """Raise ``Mistaken`` for a file that cannot be written, before any work is spent on it."""
    if suffixes and path.suffix.lower() not in suffixes:
        raise Mistaken(
            f"{path}: unknown suffix {path.suffix!r}; expected one of {', '.join(suffixes)}"
        )
    try:  # pathlib raises too: for long names and folders without permission
        if not path.parent.is_dir():
            raise Mistaken(f"{path}: there is no folder {path.parent} to save in")
        if path.is_dir():
            raise Mistaken(f"{path} is a folder; name a file in it")
        folder = path.resolve().parent  # a file is written beside it, then renamed
        atomic_write.check_target(path)
    except (OSError, RuntimeError) as error:
        raise Mistaken(f"{path}: {atomic_write.reason(error)}; choose another place") from None
    if not os.access(folder, os.W_OK):
        raise Mistaken(f"{path}: nothing can be written in {folder}; choose another place")


def check_session(path: Path | None, other: Path | None = None) -> None:
    """Check the session's output path, if any; ``other`` is another file of the command.

    A session may replace only a session: ``-o model.py`` is a slip.
    """
    if path is None:
        return
    check_output(path)
    if other is not None and os.path.realpath(path) == os.path.realpath(other):
        raise Mistaken(
            f"{path} is named twice, for the session and for another file; name two files"
        )
    with contextlib.suppress(OSError):  # an unreadable file cannot be checked
        if path.is_file() and (size := path.stat().st_size):
            with path.open("rb") as stream:
                if not seal.has_hdf5_signature(stream, size):
                    raise Mistaken(f"{path} exists and is not a session; name another file")


def check_output_there(path: Path, suffixes: Collection[str] = ()) -> None:
    """Check a path that the runner writes; on another host only its name can be checked."""
    check_output(Path(path.name) if runner_command.is_custom() else path, suffixes)


def write_text(path: Path, text: str) -> None:
    """Write a table as plain text, its line ends as they are; raises ``Failed``."""
    try:
        atomic_write.write(path, plain(text).encode())
    except (OSError, RuntimeError) as error:
        why = atomic_write.reason(error)
        raise Failed(f"{path} cannot be written: {why}; choose another place") from None


def print_status(text: str) -> None:
    """Print a line for the person, beside the result; continue if standard error is closed."""
    if sys.stderr is not None:  # None: it was closed before Python began
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{plain(text)}\n")


def report_skipped(loaded: Iterable[plugins.Plugin]) -> None:
    """Print a line about each plug-in that was skipped."""
    for plugin in loaded:
        if plugin.problem:
            print_status(f"workbench: {plugin.sentence}.")


def answer(text: str) -> None:
    """Print the result; raise ``Failed`` if standard output is closed.

    A reader that closes the pipe has read enough. The command continues, and its exit code is the
    same: ``workbench validate ... | grep -q PASS`` must not turn a failure into a success.
    """
    interrupts.set_last_words("")
    try:
        if sys.stdout is None:  # closed before Python began
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        shown = plain(text)  # no terminal obeys what a file says
        sys.stdout.write(shown if shown.endswith("\n") else f"{shown}\n")
        sys.stdout.flush()  # here, where it can still be told that it did not arrive
    except BrokenPipeError:
        return
    except OSError as error:
        sentence = f"the result cannot be written: {error.strerror}"
        raise Failed(sentence, answered=True) from None


def answer_failure(reason: str, sentence: str = "") -> None:
    """Answer in JSON for a command without a result: its ``reason``, and the failure if any."""
    answer(failure_as_json(reason, sentence))


def failure_as_json(reason: str, sentence: str = "") -> str:
    """Return the JSON text of ``answer_failure``."""
    failures = [{"kind": reason, "sentence": sentence}] if sentence else []
    return _as_json({"reason": reason, "failures": failures})


def answer_json(result: Any) -> None:
    """Print the result as JSON, for programs."""
    answer(_as_json(result))


def _as_json(result: Any) -> str:
    """Return JSON text; NaN, for which JSON has no number, becomes null."""
    return f"{json_escaped(json.dumps(_finite(result), indent=2, ensure_ascii=False))}\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if hasattr(value, "item"):  # a number of numpy
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
