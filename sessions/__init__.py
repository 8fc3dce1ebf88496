"""Sessions, their HDF5 files, statistics and comparisons (no torch, no Qt)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sessions.notebook import OpenedSession


def open(path: str | os.PathLike[str]) -> OpenedSession:
    """Open a session file for a notebook: arrays, tables and text of all that was measured.

    Raises ``SessionError`` with one sentence.
    """
    from sessions.notebook import open_session  # slow to import, and every package imports this one

    return open_session(path)
