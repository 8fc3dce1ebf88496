"""Runner and window killed at random moments: nothing that was received is lost.

Most of the kills hit a light child that streams as the runner does, and a process that journals and
saves as the window does; the others hit the real ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import wire_samples
from hang_limit import HANG_S
from process_end import assert_end
from received_rows import note_rows, noted_rows, rows
from runner_driver import HERE, LIGHT, REAL, Driver

from sessions.model import Configuration
from sessions.storage import hdf5
from workbench import protocol
from workbench.client import journal
from workbench.client.journal import Journal, recover
from workbench.client.recorder import Recorder
from workbench.client.runner_process import Runner

KILLS = 10
REAL_KILLS = 2  # of each
AT_ONCE = 2  # processes that journal and save
PERIOD_S = 0.02  # between two batches of the light child
LIVED_S = 1.0  # of steps in the session, at least
TINY = Configuration(
    family="hydra",
    preset="tiny",
    model={"dim": 32, "n_layers": 2, "n_heads": 2, "n_kv_heads": 1},
    settings={"batch": 1, "sequence": 16},
)


def slow_but_for_first(numbers: range) -> list:
    """Return the numbers as cases, of which only the first is not slow."""
    return [numbers[0], *(pytest.param(n, marks=pytest.mark.slow) for n in numbers[1:])]


def sent_before(log: Path, moment: float) -> int:
    """Return the steps that the light child had sent by then, from its own account."""
    entries = [line.split() for line in log.read_text().splitlines() if line.count(" ") == 1]
    return max((int(count) for stamp, count in entries if float(stamp) <= moment), default=0)


@pytest.fixture(scope="module")
def sitting(tmp_path_factory):
    """One session over all killed runners."""
    folder = tmp_path_factory.mktemp("runners")
    written = Journal(folder / "a.journal")
    yield written, Recorder(), folder
    written.close()


@pytest.mark.sample(5)
@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_runner_loses_nothing_and_the_next_one_goes_on(sitting, number):
    written, recorder, folder = sitting
    real = number < REAL_KILLS
    log = folder / f"sent-{number}"
    command = REAL if real else (*LIGHT, str(PERIOD_S), str(log))
    before = rows(recorder.session)
    driver = Driver(written, recorder, command)
    driver.until_state("idle")
    driver.start(TINY)
    driver.until_steps(1)
    moment = random.Random(number).uniform(0.0, 0.5)
    with contextlib.suppress(AssertionError):  # no Finished will come
        driver.until(protocol.Finished, limit_s=moment)
    os.kill(driver.runner.process.pid, signal.SIGKILL)
    killed = time.time()
    *_, last = driver.rest()
    driver.close()
    assert last.sentence.startswith("The runner was ended by SIGKILL.")
    session = recorder.session
    assert rows(session) > before
    if not real:
        # What the kernel held in the pipe arrives too; only the write that was cut may be missing.
        assert rows(session) - before >= sent_before(log, killed) - wire_samples.BATCH

    recovered = recover(written.path)
    deaths = [event for event in session.events if event.text == last.sentence]
    assert len(deaths) >= 1
    # The client's own words are not on the wire.
    on_wire = [event for event in session.events if event.text != last.sentence]
    wire_samples.assert_same(recovered, dataclasses.replace(session, events=on_wire))
    saved = folder / "session.h5"
    hdf5.save(session, saved)
    assert rows(hdf5.load(saved)) == rows(session)
    times = np.concatenate([segment.steps["t_s"] for segment in session.segments])
    assert (np.diff(times) > 0).all()


def keep_and_save(folder: Path) -> None:
    """Do what the window does with a runner, without the window: journal, record, save for ever."""
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    runner = Runner(Journal(), (*LIGHT, str(PERIOD_S)))
    recorder = Recorder()
    next_save = 0.0
    for message in runner.messages():
        recorder.record(message)
        note_rows(recorder.session, folder / "received")
        if isinstance(message, protocol.Catalogue):
            runner.send(protocol.Start(configuration=TINY))
        if recorder.session.segments and time.monotonic() > next_save:
            hdf5.save(recorder.session, folder / "s.h5")
            next_save = time.monotonic() + 0.1


def assert_nothing_lost(saved: Path, received: Path) -> None:
    """Check that the saved file opens, and the one journal left has all that was received."""
    (left,) = journal.unfinished()
    recovered = recover(left)
    session = hdf5.load(saved)
    count = rows(session)
    assert 0 < count <= rows(recovered)
    for segment, again in zip(session.segments, recovered.segments, strict=False):
        known = len(segment.steps["t_s"])
        np.testing.assert_array_equal(segment.steps["wall_ms"], again.steps["wall_ms"][:known])
    assert rows(recovered) >= noted_rows(received) >= count
    left.unlink()


def wait_for(condition, limit_s: float = HANG_S) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "nothing was saved"
        time.sleep(0.02)


def steps_saved(saved: Path) -> int:
    return rows(hdf5.load(saved)) if saved.exists() else 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("first", slow_but_for_first(range(0, KILLS - REAL_KILLS, AT_ONCE)))
def test_a_process_killed_while_it_journals_and_saves_loses_nothing(tmp_path, monkeypatch, first):
    """Several live at once, each in a folder of its own: they wait for most of their time."""
    living = []
    for number in range(first, first + AT_ONCE):
        (folder := tmp_path / str(number)).mkdir()
        process = multiprocessing.get_context("fork").Process(target=keep_and_save, args=(folder,))
        process.start()
        living.append((random.Random(number).uniform(LIVED_S, LIVED_S + 0.4), folder, process))
    wait_for(lambda: all(steps_saved(folder / "s.h5") for _, folder, _ in living))
    began = time.monotonic()
    for lived_s, folder, process in sorted(living, key=lambda life: life[0]):
        time.sleep(max(0.0, began + lived_s - time.monotonic()))
        (runner,) = psutil.Process(process.pid).children()
        process.kill()
        process.join()
        assert_end([runner])  # by itself, as its window is gone
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        assert_nothing_lost(folder / "s.h5", folder / "received")


@pytest.mark.parametrize("number", slow_but_for_first(range(REAL_KILLS)))
def test_a_window_killed_while_it_streams_and_saves_loses_nothing(tmp_path, number):
    saved = tmp_path / "s.h5"
    script = [sys.executable, str(HERE / "killed_window.py"), str(saved), str(tmp_path / "w.ini")]
    window = subprocess.Popen([*script, *REAL], stderr=subprocess.PIPE)
    try:
        wait_for(lambda: steps_saved(saved) or window.poll() is not None)
        assert window.poll() is None, window.stderr.read().decode()
        time.sleep(random.Random(number).uniform(0.5, 1.5))
        runners = psutil.Process(window.pid).children()
    finally:
        window.kill()
        window.wait()
        window.stderr.close()
    assert_end(runners)
    assert_nothing_lost(saved, saved.with_suffix(".received"))
