"""Rebuild an unsaved session from its journal, and save it."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

from sessions.numbers import counted
from sessions.storage import hdf5
from workbench import state_folder
from workbench.client import journal
from workbench.commands._command import (
    DONE,
    Command,
    Failed,
    Mistaken,
    answer,
    answer_json,
    check_session,
)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "journal",
        type=Path,
        nargs="?",
        help="default: the newest unsaved one; it is removed after saving",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE.h5", help="default: the journal's name with .h5"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _run(arguments: argparse.Namespace) -> int:
    path = arguments.journal
    if path is None:
        path = next(_with_measurements(), None)
        if path is None:
            raise Mistaken(f"there is no journal of an unsaved session in {state_folder.path()}")
    output = arguments.output or Path(f"{path.stem}.h5")
    check_session(output)
    try:
        session = journal.recover(path)
    except FileNotFoundError:
        raise Mistaken(f"{path}: there is no such file") from None
    except OSError as error:
        kind = Mistaken if isinstance(error, IsADirectoryError) else Failed
        raise kind(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise Failed(f"{error}") from None
    hdf5.save(session, output)
    if arguments.journal is None:
        journal.discard(path)  # the next call recovers the next journal
    segments = len(session.segments)
    steps = sum(len(segment.steps["t_s"]) for segment in session.segments)
    if arguments.json:
        data = {"reason": "done", "file": str(output), "segments": segments, "steps": steps}
        answer_json(data)
    else:
        answer(f"recovered {counted(segments, 'segment')}, {counted(steps, 'step')}: {output}")
    return DONE


def _with_measurements() -> Iterator[Path]:
    """Yield the unsaved journals in which a run began, newest first."""
    for path in journal.unfinished():
        with contextlib.suppress(OSError):
            if journal.has_segment(path):
                yield path


COMMAND = Command(name="recover", help=__doc__, arguments=_arguments, run=_run)
