"""Source lines of the user's code, read from a Python stack."""

from __future__ import annotations

import linecache
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch

_ROOT = Path(__file__).parents[2]
_PROBES = Path(__file__).parent / "profiling" / "probes"
# Frames of these files belong to libraries; the line that is sought is in the code that called
# them.
_LIBRARIES = (str(Path(torch.__file__).parent), str(_PROBES), sys.base_prefix, "<")


class Line(NamedTuple):
    """A line of source; ``file`` is relative to the project if it lies inside it."""

    file: str
    number: int
    function: str
    code: str

    def __str__(self) -> str:
        location = f"{self.file}:{self.number} in {self.function}"
        return f"{location}: {self.code}" if self.code else location


def here() -> Line | None:
    """Return the line that is being executed, in the innermost function outside of any library."""
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_LIBRARIES):
            name = frame.f_code.co_filename
            return line(name, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return None


def innermost(stack: Iterable[traceback.FrameSummary]) -> Line | None:
    """Return the innermost line outside of any library in ``stack`` (outermost frame first)."""
    user_frames = [frame for frame in stack if not frame.filename.startswith(_LIBRARIES)]
    return (
        line(user_frames[-1].filename, user_frames[-1].lineno or 0, user_frames[-1].name)
        if user_frames
        else None
    )


def line(file: str, number: int, function: str) -> Line:
    """Return a line together with its text."""
    code = linecache.getline(file, number).strip()
    shown = Path(file)
    if shown.is_relative_to(_ROOT):
        shown = shown.relative_to(_ROOT)
    return Line(str(shown), number, function, code)
