"""Rebuild a session that was never saved from its journal, and save it."""

from __future__ import annotations

import argparse
from pathlib import Path

from sessions import hdf5
from workbench import journal
from workbench.commands._command import DONE, Command, Failed, Mistaken, answer, check_output


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "journal",
        type=Path,
        nargs="?",
        help="default: the newest that nobody saved; removed once it is",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE.h5", help="default: the journal's name with .h5"
    )


def _run(arguments: argparse.Namespace) -> int:
    path = arguments.journal
    if path is None:
        left = journal.unfinished()
        if not left:
            raise Mistaken(f"there is no journal of an unsaved session in {journal.folder()}")
        path = left[0]
    output = arguments.output or Path(f"{path.stem}.h5")
    check_output(output)
    try:
        session = journal.recover(path)
    except FileNotFoundError:
        raise Mistaken(f"{path}: there is no such file") from None
    except OSError as error:
        raise Failed(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise Failed(f"{error}") from None
    hdf5.save(session, output)
    if arguments.journal is None:
        path.unlink(missing_ok=True)  # so that the next call finds the next one
    steps = sum(len(segment.steps["t_s"]) for segment in session.segments)
    answer(f"recovered {len(session.segments)} segment(s), {steps} steps: {output}")
    return DONE


COMMAND = Command(name="recover", help=__doc__, arguments=_arguments, run=_run)
