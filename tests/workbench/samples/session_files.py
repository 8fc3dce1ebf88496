"""Session files to open: a few steady steps, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sessions.columns import Columns
from sessions.model import STEP_COLUMNS, Configuration, Phase, Segment, Session
from sessions.storage import hdf5


def session_of(configuration: Configuration, step_ms: float = 20.0, **ledger) -> Session:
    """Return a session of one segment with 60 steady steps of about ``step_ms``."""
    steps = Columns(STEP_COLUMNS)
    times = step_ms * (1 + 0.01 * np.random.default_rng(0).standard_normal(60))
    starts = np.cumsum(times) / 1000
    steps.append({"t_s": starts, "wall_ms": times, "phase": [Phase.STEADY] * 60})
    return Session(segments=[Segment(0, configuration, "", ledger=ledger, steps=steps)])


def save_one(path: Path, **ledger) -> None:
    """Save such a session of a family's model."""
    hdf5.save(session_of(Configuration(family="hydra", preset="tiny"), **ledger), path)
