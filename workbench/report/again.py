"""The exact commands that run every segment and study again."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.reproduce import repeatable, session_commands
from workbench.report._section import Heading, Parts, Script, Section
from workbench.ui.plots import Run


def parts(runs: Sequence[Run]) -> Parts:
    """One script a session; what they write has names that no other's has."""
    for number, run in enumerate(runs, 1):
        if len(runs) > 1:
            yield Heading(run.title)
        yield Script(session_commands(run.session, f"again-{number}" if len(runs) > 1 else "again"))


SECTION = Section(
    name="again",
    title="Run it again",
    help=__doc__ or "",
    place=130,
    parts=parts,
    has=repeatable,
    nothing="Nothing ran.",
    together=1,
)
