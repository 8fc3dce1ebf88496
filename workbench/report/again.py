"""The exact commands that run every segment and study again."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.errors import SessionError
from sessions.reproduction.command_lines import repeatable, session_commands
from workbench.plots import Run
from workbench.report._section import WARNING, Heading, Parts, Script, Section, Words


def parts(runs: Sequence[Run]) -> Parts:
    """Make one script a session, or the sentence why it has none.

    What the scripts write has names that no other session's script uses.
    """
    for number, run in enumerate(runs, 1):
        if len(runs) > 1:
            yield Heading(run.title)
        try:
            script = session_commands(run.session, f"again-{number}" if len(runs) > 1 else "again")
        except SessionError as refusal:
            yield Words([str(refusal)], WARNING)
        else:
            yield Script(script)


SECTION = Section(
    name="again",
    title="Reproduce",
    help=__doc__ or "",
    order=130,
    parts=parts,
    has=repeatable,
    nothing="No configuration ran.",
    together=1,
)
