"""The number of steps that a process had received when it was killed."""

from __future__ import annotations

from pathlib import Path

from sessions.model import Session


def rows(session: Session) -> int:
    """Return the number of steps."""
    return sum(len(segment.steps["t_s"]) for segment in session.segments)


def note_rows(session: Session, path: Path) -> None:
    """Append the number of steps to a file."""
    with path.open("a") as file:
        file.write(f"{rows(session)}\n")


def noted_rows(path: Path) -> int:
    """Return the number in the last line that was written to its end."""
    *_, last = (line for line in path.read_text().splitlines(keepends=True) if line[-1] == "\n")
    return int(last)
