"""The working folder, which a user's file may change for its own paths but for nothing else."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


def current_folder() -> str:
    """Return the working folder; empty if it does not exist any more."""
    try:
        return os.getcwd()  # noqa: PTH109 - no path is needed
    except OSError:
        return ""


@contextlib.contextmanager
def working_folder(folder: str = "") -> Iterator[None]:
    """Work in ``folder``, if one is given, and return to the present folder on exit."""
    before = current_folder()
    _enter(folder)
    try:
        yield
    finally:
        _enter(before)


def _enter(folder: str) -> None:
    if folder and folder != current_folder():
        with contextlib.suppress(OSError):  # it was removed
            os.chdir(folder)
