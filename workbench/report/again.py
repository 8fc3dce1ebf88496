"""The exact commands that run every segment and study again."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.reproduce import repeatable, session_commands
from workbench.report._section import Parts, Script, Section
from workbench.ui.plots import Run


def parts(runs: Sequence[Run]) -> Parts:
    """One script a session."""
    (run,) = runs
    yield Script(session_commands(run.session))


SECTION = Section(
    name="again",
    title="Run it again",
    help=__doc__ or "",
    place=130,
    parts=parts,
    has=repeatable,
    nothing="Nothing ran.",
)
