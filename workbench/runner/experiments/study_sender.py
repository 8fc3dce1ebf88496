"""The messages of a study: its beginning, rows of its tables, and facts."""

from __future__ import annotations

from sessions.columns import TableColumns
from sessions.model import Scalar
from workbench import protocol
from workbench.runner.context import RunnerContext

Facts = dict[str, Scalar | list[Scalar]]


def verdict_facts(
    command: protocol.Compare | protocol.Attribute | protocol.Optimize | protocol.Scale,
) -> dict[str, float | str]:
    """Return the arguments of a command on which its verdicts depend, by name."""
    names = ("budget_s", "region", "floor", "floor_note", "half_width", "seed")
    return {name: getattr(command, name) for name in names}


class StudySender:
    """Sends the messages of one study, which gets its number by ``begin``."""

    def __init__(self, context: RunnerContext) -> None:
        self._context = context
        self._index = -1

    def begin(self, kind: str, title: str, request: Facts) -> None:
        """Begin the study; ``request`` holds the arguments of its command."""
        context = self._context
        self._index, context.studies = context.studies, context.studies + 1
        context.wire.send(
            protocol.StudyStarted(index=self._index, kind=kind, title=title, request=request)
        )

    def rows(self, table: str, columns: TableColumns, *, replace: bool = False) -> None:
        """Send rows of a table, after or instead of its previous rows."""
        self._context.wire.send(
            protocol.StudyRows(study=self._index, table=table, columns=columns, replace=replace)
        )

    def facts(self, **facts: Scalar | list[Scalar]) -> None:
        """Send facts; later values replace earlier ones."""
        self._context.wire.send(protocol.StudyFacts(study=self._index, facts=facts))
