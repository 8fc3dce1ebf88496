"""This process's answers to Ctrl+C, SIGTERM and SIGHUP, from its first line of code to its end.

``KeyboardInterrupt`` is never raised: Python raises it between any two instructions, and so within
a painter's callback (Qt then ends the process), within ``__del__`` (it is lost) or within
``finally`` (files stay). A handler ends the process instead, or notes the signal for code that has
something to put in order.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
SIGNALS = {signal.SIGINT: "Ctrl+C", signal.SIGTERM: "SIGTERM"}
if hasattr(signal, "SIGHUP"):  # not on Windows
    SIGNALS[signal.SIGHUP] = "SIGHUP"
Handler = Callable[[int, FrameType | None], None]

_SHOW_CURSOR = b"\x1b[?25h"
_cleanups: list[Callable[[], object]] = []
_last_words = b""
_noted: signal.Signals | None = None


def install() -> None:
    """End the process at each of ``SIGNALS`` from here on; ignored signals stay ignored."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, exit_now)


def exit_now(_number: int, _frame: FrameType | None) -> NoReturn:
    """Clean up and end the process with 130, wherever it is: no exception passes through it."""
    for cleanup in _cleanups:
        with contextlib.suppress(Exception):
            cleanup()
    with contextlib.suppress(OSError):
        if os.isatty(2):
            os.write(2, _SHOW_CURSOR)  # a progress bar may have hidden it
        os.write(1, _last_words)
    os._exit(INTERRUPTED)


def note(number: int, _frame: FrameType | None) -> None:
    """Remember the signal: ``noted`` reports it, and the process will end with 130."""
    global _noted
    _noted = _noted or signal.Signals(number)


def noted() -> signal.Signals | None:
    """Return the first signal that was noted."""
    return _noted


def at_exit(cleanup: Callable[[], object]) -> None:
    """Call ``cleanup`` when a signal ends the process; it must take no locks."""
    if cleanup not in _cleanups:
        _cleanups.append(cleanup)


def set_last_words(text: str) -> None:
    """Print ``text`` on standard output when a signal ends the process."""
    global _last_words
    _last_words = text.encode()


@contextlib.contextmanager
def handled_by(handler: Handler, *, include_ignored: bool = False) -> Iterator[None]:
    """Handle the signals of this process with ``handler``; only the main thread receives them.

    Signals that are ignored stay so (``nohup`` ignores SIGHUP), except for Ctrl+C with
    ``include_ignored``: shells let jobs in the background ignore it, which ``kill -INT`` is to end.
    Where a signal would end the process, it is only noted after the block: what was measured is
    still to be saved and reported.
    """
    global _noted
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    handled = {number for number in SIGNALS if before[number] is not signal.SIG_IGN}
    if include_ignored:
        handled.add(signal.SIGINT)
    try:
        for number in handled:
            signal.signal(number, handler)
        yield
    finally:
        for number in handled:
            previous = before[number]
            signal.signal(number, note if previous is exit_now else previous)
        if not {exit_now, note} & set(before.values()):
            _noted = None  # another program's process, which goes on


def end_process(code: int) -> NoReturn:
    """End the process with ``code``, or with 130 where a signal arrives before its last moment.

    Python's own shutdown would ignore signals, so that an interrupted command could exit with 0.
    """
    install()
    if _noted is not None:
        code = INTERRUPTED
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)
