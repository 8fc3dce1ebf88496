"""Session files of the window: read, written, recovered."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sessions.columns import Columns
from sessions.errors import SessionError
from sessions.model import Event, Session
from sessions.tracing.files import is_foreign
from workbench import protocol
from workbench.charts.drawn import MOST_SEGMENTS, devices
from workbench.client import journal

EXPECTED = (SessionError, OSError, ValueError)  # their text is one sentence for the user
SUFFIX = ".h5"
WRITTEN = {SUFFIX: "Sessions (*.h5)"}
FILTER = "Sessions (*.h5);;Journals (*.journal);;All files (*)"
TRACE_FILTER = "Traces (*.json *.json.gz *.ncu-rep);;All files (*)"


def is_journal(path: Path) -> bool:
    """Return True for a journal, which only its own window writes."""
    return path.suffix == ".journal"


def is_session(path: Path) -> bool:
    """Return True if a session can be saved there: it is no journal and no other program's file."""
    return not is_journal(path) and not is_foreign(path)


def read(path: Path) -> Session:
    """Return the session of an HDF5 file, a journal, a trace or a report.

    Raise one of ``EXPECTED``.

    The columns that plots draw are read too: the window's thread has no time to.
    """
    if is_journal(path):
        return journal.recover(path)
    if is_foreign(path):
        from sessions.storage import foreign

        return foreign.load(path)
    from sessions.storage import hdf5

    session = hdf5.load(path)
    hdf5.preload(session, session.segments[-MOST_SEGMENTS:], devices(session))
    return session


def write(session: Session, path: Path, source: Path | None = None) -> None:
    """Write a complete session; raise one of ``EXPECTED`` if that fails.

    ``source`` is the file that it was read from: a journal that is offered for recovery is removed
    once its content is saved.
    """
    from sessions.storage import hdf5

    hdf5.save(session, path)
    if source is not None and source in journal.unfinished():
        journal.discard(source)


def describe(path: Path, title: str, notes: str) -> None:
    """Change title and notes of a session's file; raise one of ``EXPECTED`` if that fails."""
    from sessions.storage import hdf5

    hdf5.update_notes(path, title, notes)


def add_event(path: Path, event: Event) -> None:
    """Add an event to a session's file; raise one of ``EXPECTED`` if that fails."""
    from sessions.storage import hdf5

    session = hdf5.load(path)
    session.events.append(event)
    hdf5.save(session, path)


def recoverable() -> list[Path]:
    """Return journals of unsaved measurements, newest first, and delete empty journals.

    Journals that cannot be read are left alone.
    """
    paths = []
    for path in journal.unfinished():
        with contextlib.suppress(OSError):
            if journal.has_segment(path):
                paths.append(path)
            else:
                journal.discard(path)
    return paths


def snapshot(session: Session) -> Session:
    """Return the session as it is now, safe to write while the live one grows.

    Growing columns become views of their rows so far. Columns of a file do not change and stay
    there: to read thousands of them here would take the window's thread for minutes.
    """
    segments = [
        dataclasses.replace(
            segment,
            steps=_rows_so_far(segment.steps),
            phases=list(segment.phases),
            evidence=list(segment.evidence),
        )
        for segment in session.segments
    ]
    return dataclasses.replace(
        session,
        segments=segments,
        telemetry={device: _rows_so_far(table) for device, table in session.telemetry.items()},
        events=list(session.events),
        comparisons=list(session.comparisons),
        studies=list(session.studies),
        orders=list(session.orders),
        environment=dict(session.environment),
    )


def _rows_so_far(table: Mapping[str, Any]) -> Mapping[str, Any]:
    return table.so_far() if isinstance(table, Columns) else table


def not_saved(error: Exception, detail: str, has_journal: bool) -> protocol.Failure:
    """Return the failure of a session that could not be written."""
    addition = "; its journal is kept" if has_journal else ""
    return protocol.Failure(
        kind="mistake",
        sentence=f"The session was not saved: {error}",
        fix=f"Save it under another name{addition}.",
        detail=detail,
    )


def not_read(error: Exception, detail: str) -> protocol.Failure:
    """Return the failure of a file that could not be read."""
    expected = isinstance(error, EXPECTED)
    sentence = str(error) if expected else f"The file could not be read ({error!r})."
    return protocol.Failure(kind="mistake", sentence=sentence, detail="" if expected else detail)


def compared_already(title: str, is_shown: bool) -> protocol.Failure:
    """Return the failure of a session that would be compared with itself."""
    sentence = f"The session {title!r} is already being compared."
    fix = "Choose another session."
    if is_shown:
        sentence = f"The file holds {title!r}, the session that is shown."
        fix = "Choose another session. The Segments table compares the segments of this session."
    return protocol.Failure(kind="mistake", sentence=sentence, fix=fix)
