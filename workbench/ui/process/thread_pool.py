"""Work that would make the window wait, done on a pool thread; the answer comes back as a call."""

from __future__ import annotations

import concurrent.futures
import sys
import traceback
from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QObject, Signal, Slot

Done = Callable[[Any], None]
Failed = Callable[[Exception, str], None]
# While a task computes, a function of numpy waits this long for Python's lock each time it returns.
# Python's own 5 ms made a redraw with thousands of such functions take seconds.
SWITCH_S = 0.0002


class Tasks(QObject):
    """A pool and the tasks in it; ``close`` waits for those that run."""

    wrote = Signal(object)  # the Path of a file that the user asked for
    _finished = Signal(object, object)  # the callback and its arguments, in the window's thread

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        sys.setswitchinterval(SWITCH_S)
        self._pool = concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="task")
        self._writer = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="writer")
        self._running: set[concurrent.futures.Future[None]] = set()
        self._finished.connect(self._call)
        self._closed = False

    def start(self, work: Callable[[], Any], done: Done, failed: Failed) -> None:
        """Run ``work`` elsewhere, then ``done(result)`` or ``failed(error, traceback)`` here."""
        self._submit(self._pool, work, done, failed)

    def write(self, work: Callable[[], Any], done: Done, failed: Failed) -> None:
        """Do the same with ``work`` that changes files: one after another, in this order.

        A change reads a file, changes its content, and writes it again.
        """
        self._submit(self._writer, work, done, failed)

    def _submit(
        self,
        pool: concurrent.futures.Executor,
        work: Callable[[], Any],
        done: Done,
        failed: Failed,
    ) -> None:
        if self._closed:
            return
        future = pool.submit(self._run, work, done, failed)
        self._running.add(future)
        future.add_done_callback(self._running.discard)

    def wait(self) -> None:
        """Wait for the tasks that run; their answers come when the event loop goes on."""
        concurrent.futures.wait(list(self._running))

    def close(self) -> None:
        """Wait for the tasks that run; their answers are dropped."""
        self._closed = True
        self._pool.shutdown()
        self._writer.shutdown()

    def _run(self, work: Callable[[], Any], done: Done, failed: Failed) -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - whatever it was, the user is told of it
            self._finished.emit(failed, (error, traceback.format_exc()))
        else:
            self._finished.emit(done, (result,))

    @Slot(object, object)  # type: ignore[untyped-decorator]  # called from the pool, through Qt
    def _call(self, callback: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if not self._closed:
            callback(*arguments)
