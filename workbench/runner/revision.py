"""The commits that a measurement belongs to: the workbench's own, and that of a model file."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

from sessions.model import HF, OWN, Configuration, Scalar
from sessions.verdicts.regression import MODEL_COMMIT, MODEL_FILE

TIMEOUT_S = 5.0
DIRTY = "+"  # after a commit whose files were changed and not committed


def workbench_commit() -> str:
    """Return the commit of the workbench's own checkout; empty for an installed package."""
    root = Path(__file__).parents[2]
    return describe(root) if (root / ".git").exists() else ""


def describe(folder: Path) -> str:
    """Return the commit of a folder's repository, with a ``+`` if files have changed since.

    Empty outside of a repository, and where git is missing.
    """
    return _git(folder, "describe", "--always", f"--dirty={DIRTY}", "--abbrev=40", "--exclude=*")


def source_facts(configuration: Configuration) -> dict[str, Scalar]:
    """Return the commit and the path in its repository of a user's model file; else nothing."""
    source = str(configuration.model.get("source", ""))
    if configuration.family != OWN or not source or source.startswith(HF):
        return {}
    return dict(_source_facts(Path(source.rpartition(":")[0] or source).resolve()))


@functools.lru_cache(maxsize=64)
def _source_facts(file: Path) -> tuple[tuple[str, Scalar], ...]:
    top = _git(file.parent, "rev-parse", "--show-toplevel")
    commit = describe(file.parent) if top else ""
    if not commit:
        return ()
    return (MODEL_COMMIT, commit), (MODEL_FILE, file.relative_to(Path(top).resolve()).as_posix())


def _git(folder: Path, *arguments: str) -> str:
    try:
        completed = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",  # as Python reads file names
            timeout=TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return completed.stdout.strip() if completed.returncode == 0 else ""
