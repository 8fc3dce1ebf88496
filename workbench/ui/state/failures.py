"""Failures that the user should see."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from workbench import protocol
from workbench.ui.state import session_files

MOST_FAILURES = 1000


class FailureModel(QObject):
    """The newest failures, oldest first; ``reported`` announces each."""

    reported = Signal(object)  # a protocol.Failure

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.recent: list[protocol.Failure] = []

    def report(self, failure: protocol.Failure) -> None:
        """Report a failure to the user."""
        self.recent[:] = [*self.recent[1 - MOST_FAILURES :], failure]
        self.reported.emit(failure)

    def report_unread(self, error: Exception, detail: str) -> None:
        """Report a file that could not be read."""
        self.report(session_files.not_read(error, detail))

    def report_unsaved(self, error: Exception, detail: str, *, has_journal: bool = False) -> None:
        """Report a session that could not be written."""
        self.report(session_files.not_saved(error, detail, has_journal))
