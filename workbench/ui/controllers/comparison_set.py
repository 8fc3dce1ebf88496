"""The sessions beside the one that is shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sessions.model import Session
from workbench.ui.dialogs import session_files

if TYPE_CHECKING:
    from workbench.ui.state import AppState


class Compared:
    """What the shown session is compared with; the state's ``comparedChanged`` tells of changes."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self.sessions: list[Session] = []

    def open(self, path: Path) -> None:
        """Add the session of a file, or of a journal, once it is read."""
        self._state.tasks.start(lambda: session_files.read(path), self.add, self._state.refuse)

    def add(self, session: Session) -> None:
        """Add a session; that one is shown or here already is told."""
        if any(session.id == other.id for other in [self._state.session, *self.sessions]):
            self._state.fail(session_files.compared_already(session.title))
            return
        self.sessions.append(session)
        self._state.retitle()
        self._state.comparedChanged.emit()

    def remove(self, session: Session) -> None:
        """Take a session away."""
        self.sessions.remove(session)
        self._state.comparedChanged.emit()

    def clear(self) -> None:
        """Leave the shown session alone."""
        self.sessions.clear()
        self._state.comparedChanged.emit()
