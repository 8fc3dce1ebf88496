"""The log of errors that no code expected: a person reads one sentence, the log has the rest."""

from __future__ import annotations

import contextlib
import io
import sys
import time
import traceback
from pathlib import Path

from workbench import state_folder

LONGEST_BYTES = 1 << 20  # then a new log begins, and the previous one is kept
_MOST_CHARACTERS = 200  # characters of an error's text in a sentence


def path() -> Path:
    """Return where the log is."""
    return state_folder.path() / "errors.log"


def write(error: BaseException) -> Path | None:
    """Append the error with its traceback; return the log, or None if it cannot be written."""
    log = path()
    entry = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {sys.argv[:2]}\n{as_text(error)}\n"
    with contextlib.suppress(OSError, ValueError):
        state_folder.prepare()
        if log.exists() and log.stat().st_size > LONGEST_BYTES:
            log.replace(log.with_suffix(".log.1"))
        with io.open(log, "ab", opener=state_folder.opener) as stream:  # noqa: UP020
            stream.write(entry.encode(errors="replace"))
        return log
    return None


def as_text(error: BaseException) -> str:
    """Return the error with its traceback."""
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - its own __str__ fails
        return type(error).__name__


def describe(error: BaseException) -> str:
    """Return the error in a few words on one line."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - its own __str__ fails
        text = ""
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]} ..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def where(log: Path | None) -> str:
    """Return the sentence that says where the traceback is."""
    if log is None:
        return f"Its traceback could not be logged: {state_folder.ELSEWHERE}."
    return f"{log} has its traceback."
