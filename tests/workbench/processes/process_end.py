"""Wait for the end of processes that are not children of the tests."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import psutil
from hang_limit import HANG_S


def assert_end(processes: Sequence[psutil.Process], limit_s: float = HANG_S) -> None:
    """Assert that all end; an orphan's new parent may take seconds to reap it."""
    deadline = time.monotonic() + limit_s
    for process in processes:
        while _runs(process):
            assert time.monotonic() < deadline, f"{process} lives on"
            time.sleep(0.01)


def command_of(process: psutil.Process) -> str:
    """Return the command line; empty for a process that has ended, waited for or not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
