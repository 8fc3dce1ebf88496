"""Names of the files of other profilers that open as sessions."""

from __future__ import annotations

from pathlib import Path

REPORT_SUFFIX = ".ncu-rep"
SUFFIXES = (".json", ".json.gz", REPORT_SUFFIX)


def is_foreign(path: Path) -> bool:
    """Return whether the name is that of a Kineto trace or a report of Nsight Compute."""
    return path.name.lower().endswith(SUFFIXES)


def is_report(path: Path) -> bool:
    """Return whether the name is that of a report of Nsight Compute."""
    return path.name.lower().endswith(REPORT_SUFFIX)
