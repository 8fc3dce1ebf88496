"""The code of a user's file: how it is read and called, and what its errors say."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from models import ConfigurationError
from workbench.runner.environment import host
from workbench.runner.failures import Mistake, OwnModelError
from workbench.runner.user_models.neighbour_modules import too_deeply_nested

_MOST_BYTES = 10_000_000


def call_user_code(path: Path, description: str, call: Callable[[], Any]) -> Any:
    """Call the user's code; raise ``OwnModelError`` with the traceback of that code.

    Code that Python cannot read raises ``Mistake``.
    """
    try:
        return call()
    except torch.OutOfMemoryError:
        raise
    except (MemoryError, RecursionError) as error:
        nested = too_deeply_nested(path, read_source)
        if nested is None and isinstance(error, MemoryError):
            raise
        if nested is None:
            raise _own_error(path, description, error) from None
        raise Mistake(
            f"own: {nested}: an expression or a statement is nested too deeply for Python's "
            "parser; split it into several"
        ) from None
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""  # none for a binary file
        where = f"{error.filename or path}{line}"
        raise Mistake(f"own: {where}: {error.msg}; correct the file") from None
    except BaseException as error:  # noqa: BLE001 - a person's file may raise anything
        raise _own_error(path, description, error) from None


def _own_error(path: Path, description: str, error: BaseException) -> OwnModelError:
    """Return the error of the user's code, with its line and its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    frame_numbers = [number for number, frame in enumerate(frames) if frame.filename == str(path)]
    line = f", line {frames[frame_numbers[-1]].lineno}" if frame_numbers else ""
    text = (str(error).strip().split("\n") or [""])[0] or "no message"
    if isinstance(error, StopIteration):
        text = "the data ended; start over then, because each run draws several batches"
    detail = "".join(traceback.format_list(frames[frame_numbers[0] :] if frame_numbers else frames))
    detail += "".join(traceback.format_exception_only(error))
    sentence = f"{path}{line}: {description} raised {type(error).__name__}: {text}"
    return OwnModelError(sentence, detail)


def read_source(path: Path) -> bytes:
    """Return the content of a Python file; raises ``ConfigurationError``."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is not a regular file")
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES:,} bytes")
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError also for a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"own: cannot read {str(path)!r} on {host()}: {reason}") from None
