"""A second checkout of a git repository, at an earlier commit, in a temporary folder."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from workbench.git import run_git

_SHOWN = 40  # characters
_HASH = re.compile(r"[0-9a-f]{7,64}")


class NotCheckedOut(Exception):  # noqa: N818 - says what happened
    """Reason why a commit cannot be checked out: a clause."""


@contextlib.contextmanager
def checked_out(repository: Path, commit: str) -> Iterator[Path]:
    """Check ``commit`` out and yield the folder, which is removed again afterwards.

    Raises ``NotCheckedOut``, also for a name that is no hash: git would read ``--lock`` as an
    option, and ``HEAD`` as another commit than the one that was recorded.
    """
    if not _HASH.fullmatch(commit):
        raise NotCheckedOut(f"its commit {commit[:_SHOWN]!r} is not the hash of a commit")
    with tempfile.TemporaryDirectory(prefix="workbench-check-") as folder:
        target = Path(folder).resolve() / "checkout"
        completed = run_git(
            repository, "worktree", "add", "--detach", "--quiet", str(target), commit
        )
        if completed is None:
            raise NotCheckedOut("git is missing, or did not answer")
        if completed.returncode != 0:
            lines = completed.stderr.strip().splitlines() or ["no reason given"]
            raise NotCheckedOut(
                f"git has no commit {commit[:12]} here ({lines[-1]}); a shallow clone needs "
                "`git fetch --unshallow`"
            )
        try:
            yield target
        finally:
            run_git(repository, "worktree", "remove", "--force", str(target))
