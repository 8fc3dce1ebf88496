"""Unexpected exceptions: a sentence in the window, and the traceback in the log."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal, Slot
from PySide6.QtWidgets import QWidget

from workbench import crash_log
from workbench.protocol import Failure
from workbench.ui.panels.broken import cover, panel_of
from workbench.ui.state.failures import FailureModel

PERIOD_MS = 1000  # between two reports; painting can fail many times a second


def report(error: Exception) -> None:
    """Log and report a caught exception as if it had not been caught.

    A test that replaces ``sys.excepthook`` sees it too.
    """
    sys.excepthook(type(error), error, error.__traceback__)


class UncaughtErrors(QObject):
    """Report of exceptions in slots, painting, threads and destructors, until ``end``.

    Errors within a second are counted and reported together, with the traceback of the first. The
    sentence covers the panel whose code raised the error, if it is one of ``panels``.
    """

    _arrived = Signal()

    def __init__(self, failures: FailureModel, panels: list[QWidget]) -> None:
        super().__init__()
        self._failures = failures
        self._panels = panels
        self._broken: QWidget | None = None  # the panel of the error that is not reported yet
        self._lock = threading.Lock()
        self._error: Failure | None = None  # the first that is not reported yet
        self._count = 0
        self._timer = QTimer(self, singleShot=True, interval=PERIOD_MS)
        self._timer.timeout.connect(self._report)
        self._arrived.connect(self._schedule)
        self._hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
        sys.excepthook = self._on_exception
        threading.excepthook = self._on_thread_exception
        sys.unraisablehook = self._on_unraisable

    def end(self) -> None:
        """Report the remaining errors and restore Python's hooks."""
        sys.excepthook, threading.excepthook, sys.unraisablehook = self._hooks
        self._timer.stop()
        self._report()

    def _on_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        broken = panel_of(trace, self._panels)
        self._queue_error(error.with_traceback(trace), "in the window", broken)

    def _on_thread_exception(self, arguments: Any) -> None:
        error = arguments.exc_value or arguments.exc_type()
        name = arguments.thread.name if arguments.thread is not None else "without a name"
        self._queue_error(error, f"in the thread {name}")

    def _on_unraisable(self, arguments: Any) -> None:
        error = arguments.exc_value or arguments.exc_type()
        self._queue_error(error, "in a finalizer or callback")

    def _queue_error(
        self, error: BaseException, location: str, broken: QWidget | None = None
    ) -> None:
        with self._lock:
            self._count += 1
            if self._error is not None:
                return
            self._broken = broken
            self._error = Failure(  # shown at once; further errors of this second are counted
                kind="defect",
                sentence=f"An error inside the program {location}: {crash_log.describe(error)}.",
                fix=crash_log.where(crash_log.write(error)),
                detail=crash_log.as_text(error),
            )
        self._arrived.emit()

    @Slot()  # type: ignore[untyped-decorator]  # called from any thread, through Qt
    def _schedule(self) -> None:
        if not self._timer.isActive():
            self._timer.start(PERIOD_MS)
            self._report()

    def _report(self) -> None:
        with self._lock:
            error, self._error = self._error, None
            count, self._count = self._count, 0
            broken, self._broken = self._broken, None
        if error is None:
            return
        if broken is not None:
            cover(broken, f"This panel could not be drawn. {error.sentence_with_fix}")
        if count > 1:
            error.sentence += f" {count - 1} more followed within a second."
        self._failures.report(error)
