"""A save that is killed at any moment leaves the old file or the new one."""

from __future__ import annotations

import multiprocessing
import random
import time
from pathlib import Path

import numpy as np
import pytest
import session_samples as samples

from sessions import hdf5
from sessions.columns import row_count

KILLS = 20
ROWS = 20_000


def save_for_ever(path: Path) -> None:
    rows = ROWS
    while True:
        rows += 1
        hdf5.save(samples.session(n=rows, segments=1, title=str(rows)), path)


def leftovers(path: Path) -> set[Path]:
    return set(path.parent.glob(".s.h5.*.partial"))


def wait_for_a_write(path: Path) -> None:
    before = leftovers(path)
    give_up = time.monotonic() + 20
    while leftovers(path) <= before and time.monotonic() < give_up:
        pass


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_file_is_whole_after_every_kill_of_the_process_that_saves_it(tmp_path):
    path = tmp_path / "s.h5"
    hdf5.save(samples.session(n=ROWS, segments=1, title=str(ROWS)), path)
    moments = random.Random(0)
    context = multiprocessing.get_context("fork")
    titles, torn = set(), 0
    for kill in range(KILLS):
        process = context.Process(target=save_for_ever, args=(path,))
        process.start()
        if kill % 2:
            wait_for_a_write(path)
        time.sleep(moments.uniform(0.0, 0.002 if kill % 2 else 0.3))
        process.kill()
        process.join()
        assert process.exitcode == -9
        torn += bool(leftovers(path))  # the next save clears them away
        session = hdf5.load(path)
        steps = session.segments[0].steps
        rows = int(session.title)
        assert row_count(steps) == rows
        np.testing.assert_array_equal(steps["wall_ms"], samples.steps(rows)["wall_ms"])
        titles.add(rows)
    assert len(titles) > 1, "no save was ever finished, so nothing was tested"
    assert torn, "no kill fell into a write, so nothing was tested"
