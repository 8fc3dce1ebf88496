"""The commits that a measurement belongs to: the workbench's own, and that of a model file."""

from __future__ import annotations

import functools
from pathlib import Path

from sessions.model import HF, OWN, Configuration, Scalar, split_source
from sessions.verdicts.regression import MODEL_COMMIT, MODEL_FILE
from workbench.git import commit_of, repository_of

TIMEOUT_S = 5.0


def workbench_commit() -> str:
    """Return the commit of the workbench's own checkout; empty for an installed package."""
    root = Path(__file__).parents[2]
    return commit_of(root, TIMEOUT_S) if (root / ".git").exists() else ""


def source_facts(configuration: Configuration) -> dict[str, Scalar]:
    """Return the commit and the path in its repository of a user's model file; else nothing."""
    source = str(configuration.model.get("source", ""))
    if configuration.family != OWN or not source or source.startswith(HF):
        return {}
    return dict(_source_facts(Path(split_source(source)[0]).resolve()))


@functools.lru_cache(maxsize=64)
def _source_facts(file: Path) -> tuple[tuple[str, Scalar], ...]:
    top = repository_of(file.parent, TIMEOUT_S)
    commit = commit_of(file.parent, TIMEOUT_S)
    if top is None or not commit:
        return ()
    return (MODEL_COMMIT, commit), (MODEL_FILE, file.relative_to(top.resolve()).as_posix())
