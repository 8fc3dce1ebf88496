"""Rebuild the session of a crash from its journal and save it."""

from __future__ import annotations

import argparse
from pathlib import Path

from sessions import hdf5
from workbench import journal
from workbench.commands._command import DONE, Command, Mistaken, answer


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "journal", type=Path, nargs="?", help="default: the newest that was not saved"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.h5")


def _run(arguments: argparse.Namespace) -> int:
    path = arguments.journal
    if path is None:
        left = journal.unfinished()
        if not left:
            raise Mistaken(f"there is no journal of an unsaved session in {journal.folder()}")
        path = left[0]
    try:
        session = journal.recover(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise Mistaken(f"{path} cannot be recovered: {reason}") from None
    output = arguments.output or Path(f"{path.stem}.h5")
    hdf5.save(session, output)
    steps = sum(len(segment.steps["t_s"]) for segment in session.segments)
    answer(f"recovered {len(session.segments)} segments, {steps} steps: {output}")
    return DONE


COMMAND = Command(name="recover", help=__doc__, arguments=_arguments, run=_run)
