"""Ending every process that a runner started, also those in sessions of their own.

A model may start processes that no signal to the runner's group reaches. On Linux each of them can
still be identified: by the variable that they inherit, and, while the runner lives, by being its
descendants (a process whose parent ended becomes a child of the runner).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "WORKBENCH_RUNNER_ID"
_PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def adopt_orphans() -> None:
    """Let processes whose parent ends become children of this one; nothing outside of Linux."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Let the system kill this process when its parent ends; nothing outside of Linux."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def kill_descendants() -> None:
    """Kill every descendant of this process; again, as long as one of them starts others."""
    for _ in range(10):
        descendants = _descendants(os.getpid())
        for number in descendants:
            _kill(number)
        _reap()
        if not descendants:
            return


def kill_marked(mark: str) -> None:
    """Kill every process whose ``VARIABLE`` was ``mark`` when it was started."""
    marked_entry = f"{VARIABLE}={mark}".encode()
    for _ in range(10):
        marked = [number for number in _processes() if marked_entry in _environment(number)]
        for number in marked:
            _kill(number)
        if not marked:
            return


def _processes() -> list[int]:
    """Return the numbers of all processes but this one; none where there is no ``/proc``."""
    with contextlib.suppress(OSError):
        numbers = [int(path.name) for path in _PROC.iterdir() if path.name.isdigit()]
        return [number for number in numbers if number != os.getpid()]
    return []


def _environment(number: int) -> list[bytes]:
    """Return the variables that a process was started with; none of another user's process."""
    try:
        return (_PROC / str(number) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _descendants(ancestor: int) -> set[int]:
    parents: dict[int, int] = {}
    for number in _processes():
        with contextlib.suppress(OSError, ValueError, IndexError):
            # "PID (NAME) STATE PARENT ...", and the name may hold anything.
            fields = (_PROC / str(number) / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                parents[number] = int(fields[1])
    return {number for number in parents if ancestor in _ancestors(number, parents)}


def _ancestors(number: int, parents: dict[int, int]) -> Iterator[int]:
    visited = set()
    while number in parents and number not in visited:
        visited.add(number)
        number = parents[number]
        yield number


def _kill(number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(number, signal.SIGKILL)


def _reap() -> None:
    """Take the exit codes of ended children, for which no other code waits."""
    with contextlib.suppress(OSError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
