"""Git commands in the repository of a folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

TIMEOUT_S = 300.0
# Variables that name another repository than the folder's. Git sets some of them for its hooks:
# with its index, a second checkout would overwrite the index of the commit that is being made.
_OF_HOOKS = {
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
}


def run_git(
    folder: Path, *arguments: str, timeout_s: float = TIMEOUT_S
) -> subprocess.CompletedProcess[str] | None:
    """Run git in a folder; None if it is missing or does not answer."""
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env={name: value for name, value in os.environ.items() if name not in _OF_HOOKS}
            | {"LC_ALL": "C"},  # its messages are read
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",  # as Python reads file names
            timeout=timeout_s,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def repository_of(folder: Path, timeout_s: float = TIMEOUT_S) -> Path | None:
    """Return the top folder of the repository that contains ``folder``; None outside of one."""
    completed = run_git(folder, "rev-parse", "--show-toplevel", timeout_s=timeout_s)
    return (
        Path(completed.stdout.strip())
        if completed is not None and completed.returncode == 0
        else None
    )


def why_no_repository(folder: Path) -> str:
    """Return in a clause why ``repository_of`` returns None, from git's own message."""
    completed = run_git(folder, "rev-parse", "--show-toplevel")
    if completed is None:
        return "git is not installed, or does not answer"
    reason = (completed.stderr.strip().splitlines() or ["git gives no reason"])[0]
    if "not a git repository" in reason:
        return f"{folder} is not in a git repository"
    return f"git refuses the repository of {folder}: {reason.removeprefix('fatal: ')}"


def commit_of(folder: Path, timeout_s: float = TIMEOUT_S) -> str:
    """Return the commit of a repository, with a ``+`` if files have changed since.

    Empty outside of a repository, and where git is missing.
    """
    arguments = "describe", "--always", "--dirty=+", "--abbrev=40", "--exclude=*"
    completed = run_git(folder, *arguments, timeout_s=timeout_s)
    return completed.stdout.strip() if completed is not None and completed.returncode == 0 else ""
