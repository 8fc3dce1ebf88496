"""Session files that stay open while many of their columns are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sessions.columns import Columns
from sessions.model import Session


@contextmanager
def reading(*sessions: Session) -> Iterator[None]:
    """Keep the files of these sessions open while many of their columns are read."""
    segments = [segment for session in sessions for segment in session.segments]
    if all(isinstance(segment.steps, Columns | dict) for segment in segments):
        yield  # nothing is in a file
        return
    from sessions.storage import hdf5  # h5py takes a while to load

    with hdf5.held_open(sessions):
        yield
