"""The sessions that are compared with the shown session."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject, Signal

from sessions.model import Session
from workbench.ui.process.thread_pool import Tasks
from workbench.ui.state import session_files
from workbench.ui.state.failures import FailureModel
from workbench.ui.state.session import SessionModel


class ComparisonModel(QObject):
    """The sessions that the shown one is compared with."""

    changed = Signal()

    def __init__(
        self,
        session: SessionModel,
        tasks: Tasks,
        failures: FailureModel,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._tasks, self._failures = session, tasks, failures
        self._added: list[Session] = []

    @property
    def sessions(self) -> list[Session]:
        """The added sessions except the shown session, which may have been added before."""
        shown = self._session.shown
        return [session for session in self._added if session.id != shown.id]

    def open(self, path: Path) -> None:
        """Add the session of a file, or of a journal, once it is read."""
        self._tasks.start(lambda: session_files.read(path), self.add, self._failures.report_unread)

    def add(self, session: Session) -> None:
        """Add a session; report one that is shown or here already."""
        is_shown = session.id == self._session.shown.id
        if is_shown or any(session.id == other.id for other in self._added):
            self._failures.report(session_files.compared_already(session.title, is_shown))
            return
        self._added.append(session)
        self._announce()

    def remove(self, session: Session) -> None:
        """Remove a session."""
        self._added.remove(session)
        self._announce()

    def clear(self) -> None:
        """Remove every session from the comparison."""
        self._added.clear()
        self._announce()

    def _announce(self) -> None:
        self._session.set_compared_titles([session.titles for session in self._added])
        self.changed.emit()
