"""``workbench run -- COMMAND``: failures, signals, forks, and scripts that never step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from hang_limit import HANG_S

from workbench import state_folder
from workbench.cli import main
from workbench.client import journal
from workbench.scripts import plan

LOOP = """
import sys, time, workbench
for batch in workbench.watch(range(30)):
    time.sleep(0.01)
"""
FOREVER = """
import signal, sys, time, workbench
try:
    for batch in workbench.watch(range(10**9)):
        time.sleep(0.01)
        if batch == 5:
            open("stepping", "w").close()
except KeyboardInterrupt:
    time.sleep(0.3)
    open("cleaned up", "w").close()
    raise
"""

GOES_ON = """
import signal, sys, time, workbench
ends = []
signal.signal(signal.SIGTERM, lambda *_: ends.append(step + 100))
for step in workbench.watch(range(10**9)):
    time.sleep(0.01)
    if ends and step > ends[0]:
        open("steps", "w").write(str(ends[0] - 100))
        break
"""


def test_a_failing_script_passes_its_exit_code_on_and_its_session_is_kept(run, write):
    script = write(f"{LOOP}\nprint('almost')\nsys.exit(7)")
    result = run("run", script=(script,), saved=False)
    assert result.code == 7
    assert result.out == "almost\n"
    assert "The script ended with exit code 7." in result.err
    assert "the session has the earlier steps" in result.err
    assert "workbench recover" in result.err
    (path,) = state_folder.path().glob("*.journal")
    (segment,) = journal.recover(path).segments
    assert len(segment.steps["t_s"]) == 30
    assert segment.ledger["exit_code"] == 7


@pytest.mark.parametrize("code", [3, 170])  # 170 - 128 is a real-time signal without a name
def test_a_script_that_fails_before_its_first_step_promises_no_steps(run, write, code):
    result = run("run", script=(write(f"raise SystemExit({code})"),), saved=False)
    assert result.code == code
    assert f"exit code {code}." in result.err
    assert result.err.strip().endswith("no steps were recorded.")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("print('hello')", "no Python process of the command imported torch"),
        ("import workbench\nfor _ in workbench.watch([]): pass", "completed no iteration"),
        ("import workbench\nfor _ in workbench.watch([1, 2]): break", "completed no iteration"),
        ("import sys, types; sys.modules['torch'] = types.ModuleType('torch')", "imported torch"),
    ],
)
def test_a_script_that_never_steps_is_explained_in_one_sentence(run, write, text, reason):
    result = run("run", script=(write(text),), saved=False)
    assert result.code == 0
    (line,) = result.err.strip().splitlines()
    assert line.startswith("No steps were measured: ")
    assert reason in line


def test_the_result_as_json_is_alone_on_standard_output(run, write):
    result = run("run", "--json", script=(write(f"print('loud')\n{LOOP}"),), saved=False)
    answer = json.loads(result.out)
    assert answer["exit_code"] == 0
    assert answer["segments"][0]["steps"] == 30
    assert "loud" in result.err


def test_enough_steps_end_a_script(run, write):
    result = run("run", "--steps", "20", script=(write(FOREVER),))
    assert result.code == 0
    assert len(result.session.segments[0].steps["t_s"]) >= 20


def test_enough_seconds_end_a_script_that_no_longer_steps(run, write):
    """It may hang, wait for input, or have finished its training."""
    result = run(
        "run", "--seconds", "0.5", script=(write(f"{LOOP}\ntime.sleep({HANG_S})\nsys.exit(3)"),)
    )
    assert result.code == 0
    assert len(result.session.segments[0].steps["t_s"]) == 30


def test_seconds_end_a_script_that_never_makes_its_first_step(run, write, monkeypatch):
    monkeypatch.setattr(plan, "FIRST_STEP_S", 0.5)
    script = (write(f"import time\ntime.sleep({HANG_S})"),)
    result = run("run", "--seconds", "5", script=script, saved=False)
    assert result.code == 1
    assert "The script was ended: it made no step in 0.5 s." in result.err
    assert "no steps were measured" in result.err.lower()


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_more_seconds_than_a_clock_can_count_end_no_script(run, write):
    result = run("run", "--seconds", "1e300", script=(write(LOOP),))
    assert result.code == 0
    assert "Error" not in result.err


def test_steps_after_enough_steps_are_not_recorded(run, write, tmp_path):
    """A script may handle SIGTERM and go on, for example to save a checkpoint."""
    result = run("run", "--steps", "20", script=(write(GOES_ON),))
    assert result.code == 0
    steps_at_signal = int((tmp_path / "steps").read_text())
    assert 20 <= len(result.session.segments[0].steps["t_s"]) <= steps_at_signal + 1


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_ends_the_script_in_its_own_way(write, tmp_path, number):
    """The script cleans up, what was measured is saved, and the exit code is 130."""
    script, path = write(FOREVER), tmp_path / "out.h5"
    words = [sys.executable, "-m", "workbench", "run", "-o", str(path), "--"]
    command = subprocess.Popen(
        [*words, sys.executable, str(script)],
        stderr=subprocess.PIPE,
        start_new_session=True,  # without a terminal, whose signals both would get
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    wait_until((tmp_path / "stepping").exists)
    command.send_signal(number)
    _, errors = command.communicate(timeout=HANG_S)
    assert command.returncode == 130, errors
    assert (tmp_path / "cleaned up").exists() == (number is signal.SIGINT)
    assert path.exists(), errors


def wait_until(condition, limit_s: float = HANG_S) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("run", "hydra", "--", "python", "a.py"), "a family is for the workbench's own models"),
        (("run", "--check", "--", "python", "a.py"), "--check is for the workbench's own models"),
        (("run", "--"), "there is no command after --"),
        (("run", "--toggle", "tf32=maybe", "--", "a"), "setting tf32: expected one of"),
        (("run", "--set", "x=1", "--", "python"), "unknown setting 'x'"),
        (("run", "--runner", "ssh x y", "--", "python"), "a script runs on this machine"),
        (("ab", "--b", "workers=3", "--", "python"), "setting workers: expected one of"),
        (("info", "a.h5", "--", "python"), "unrecognized arguments: python"),
        (("ab", "hydra", "--steps", "3"), "--steps is for a script after --"),
    ],
)
def test_mistakes_are_refused_before_anything_starts(words, sentence, capsys):
    try:
        code = main(list(words))
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert sentence in capsys.readouterr().err


def test_a_command_that_cannot_be_started_is_named(capsys):
    assert main(["run", "--", "no-such-program"]) == 127
    assert "'no-such-program' cannot be started: No such file" in capsys.readouterr().err


def test_a_lost_watcher_ends_no_script(run, write):
    """The script goes on; the command fails, and what was measured is not lost."""
    script = write(
        f"""
import os, signal
{LOOP}
def is_watcher(number):
    words = open(f"/proc/{{number}}/cmdline", "rb").read().split(b"\\0")
    parent = int(open(f"/proc/{{number}}/stat", "rb").read().rpartition(b")")[2].split()[1])
    return b"workbench.runner.script" in words and parent == os.getppid()
for number in filter(str.isdigit, os.listdir("/proc")):
    try:
        if is_watcher(number):
            os.kill(int(number), signal.SIGKILL)
    except OSError:
        pass
time.sleep(0.3)
open("went on", "w").close()
"""
    )
    result = run("run", script=(script,))
    assert result.code == 1
    assert script.with_name("went on").exists()
    assert "runner" in result.err
