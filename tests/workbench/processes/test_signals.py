"""Ctrl+C at any moment ends a command or the window with 130, and leaves nothing half written."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import signalled_commands as commands
from hang_limit import HANG_S

PROGRAM = """
import atexit, os, signal, sys

def press(*_, **__):
    os.kill(os.getpid(), signal.SIGINT)

def pressed_in(owner, name):
    function = getattr(owner, name)
    def called(*arguments, **options):
        press()
        return function(*arguments, **options)
    setattr(owner, name, called)

class Dying:
    __del__ = press

class Finder:
    @staticmethod
    def find_spec(name, *_):
        if name == "h5py":
            press()

exec(sys.argv.pop(1))
from workbench.__main__ import main
main()
"""
EXPORT = ("export", "a.h5", "--plot", "ecdf", "-o", "out.png")
WINDOW = ("--replay", "left.journal", "--settings", "window.ini")
MOMENTS = {
    "in painting": (
        "from workbench.charts import axis; pressed_in(axis.Axis, 'paint')", EXPORT
    ),
    "in a destructor": (
        "from workbench import cli; cli._is_file = lambda _: Dying()", ("nothing",)
    ),
    "in an import": ("sys.meta_path.insert(0, Finder)", ("info", "a.h5", "--json")),
    "in a save": ("pressed_in(os, 'fsync')", EXPORT),
    "at the end": ("atexit.register(press)", ("info", "a.h5")),
    "while the window is made": (
        "from workbench.ui.state.run import RunModel; pressed_in(RunModel, 'start_runner')", WINDOW
    ),
    "while the window is painted": (
        "from workbench.ui.panels.empty import Empty; pressed_in(Empty, 'event')", WINDOW
    ),
}  # fmt: skip


@pytest.fixture
def sigint_handled():
    """Handle Ctrl+C: a shell lets background processes ignore it, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("signalled")
    commands.prepare(made)
    return made


@pytest.mark.sample(4)
@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_at_the_worst_moments_is_130_without_a_word(moment, folder, sigint_handled):
    plant, arguments = MOMENTS[moment]
    before = set(folder.iterdir())
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, plant, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env={**os.environ, "PYTHONPATH": str(commands.ROOT)},
    )
    assert (done.returncode, done.stderr) == (130, "")
    assert ('"reason": "cancelled"' in done.stdout) == ("--json" in arguments)
    assert {path.name for path in set(folder.iterdir()) - before} <= {"window.ini"}


def ended_at_random_moments(names, folder, numbers, rounds) -> list[str]:
    """Return the faults of commands that were ended, several at a time, in their own folders."""
    moments = random.Random(0)

    def end(trial: int) -> list[str]:
        name, number = names[trial % len(names)], numbers[trial % len(numbers)]
        own = folder / str(trial)
        own.mkdir()
        commands.prepare(own)
        ended = commands.run(commands.COMMANDS[name], own, after_s[trial], number)
        faults = list(ended.faults)
        if not ended.had_ended and not commands.is_reported(number, ended):
            faults.append(f"exit code {ended.code}: {ended.errors}")
        return [f"{name}, {number.name} after {after_s[trial]:.3f} s: {fault}" for fault in faults]

    trials = range(rounds * len(names))
    after_s = [moments.uniform(0.05, 2.5) for _ in trials]
    with ThreadPoolExecutor(2) as pool:
        return [fault for faults in pool.map(end, trials) for fault in faults]


def test_commands_and_the_window_end_at_any_moment(tmp_path, sigint_handled):
    names = ["info", "export pdf", "run", "window"]
    assert ended_at_random_moments(names, tmp_path, [signal.SIGINT], 1) == []


@pytest.mark.slow
def test_a_window_at_full_rate_needs_no_more_of_anything_as_time_goes_by():
    script = commands.ROOT / "tests" / "benchmarks" / "soak_window.py"
    done = subprocess.run(
        [sys.executable, str(script), "--seconds", "30"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_all_commands_end_at_any_moment(number, tmp_path, sigint_handled):
    assert ended_at_random_moments(list(commands.COMMANDS), tmp_path, [number], 5) == []
