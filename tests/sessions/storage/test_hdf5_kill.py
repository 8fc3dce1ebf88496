"""A save that is killed at any moment leaves the old file or the new one."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import session_samples as samples

from sessions.columns import row_count
from sessions.storage import hdf5

KILLS = 20
ROWS = 20_000


def save_for_ever(path: Path) -> None:
    rows = ROWS
    while True:
        rows += 1
        hdf5.save(samples.session(n=rows, segments=1, title=str(rows)), path)


def wait_for_another(path: Path, process: multiprocessing.Process) -> float:
    """Wait until the process has saved the file, however slowly; return the seconds that it took.

    A file system may give the new file the number of the one before the old: the time tells too.
    """
    began = time.monotonic()
    old = path.stat()
    while (new := path.stat()).st_ino == old.st_ino and new.st_mtime_ns == old.st_mtime_ns:
        assert process.is_alive(), "it ended without a save"
        time.sleep(0.01)
    return time.monotonic() - began


def leftovers(path: Path) -> set[Path]:
    return set(path.parent.glob(".s.h5.*.partial"))


def save_and_die(path: Path, half: bool) -> None:
    """Save, and be killed with half of the content written, or with all of it before it counts."""

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if half:
        opened = Path.open

        def open_and_die(self, *arguments):
            stream = opened(self, *arguments)
            content = memoryview(hdf5.image(changed))
            stream.write(content[: len(content) // 2])
            stream.flush()
            die()

        Path.open = open_and_die
    else:
        os.fsync = die
    changed = samples.session(n=ROWS // 2, segments=1, title=str(ROWS // 2))
    hdf5.save(changed, path)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_file_is_whole_after_every_kill_of_the_process_that_saves_it(tmp_path):
    path = tmp_path / "s.h5"
    hdf5.save(samples.session(n=ROWS, segments=1, title=str(ROWS)), path)
    save_s = 0.0
    moments = random.Random(0)
    context = multiprocessing.get_context("fork")
    titles = {ROWS}
    for kill in range(KILLS):
        before = leftovers(path)
        if kill % 2:
            process = context.Process(target=save_and_die, args=(path, kill % 4 == 1))
            process.start()
        else:
            process = context.Process(target=save_for_ever, args=(path,))
            process.start()
            if kill == 0:
                save_s = wait_for_another(path, process)  # with what else the machine does
            time.sleep(moments.uniform(0.0, 3 * save_s))
            process.kill()
        process.join()
        assert process.exitcode == -9
        if kill % 2:
            assert leftovers(path) - before, "it did not die in the write, so nothing was tested"
        session = hdf5.load(path)
        steps = session.segments[0].steps
        rows = int(session.title)
        assert row_count(steps) == rows
        np.testing.assert_array_equal(steps["wall_ms"], samples.steps(rows)["wall_ms"])
        titles.add(rows)
    assert len(titles) > 1, "no save was ever finished, so nothing was tested"
