"""``workbench ab -- COMMAND``: new processes in random pairs, and the verdict's statistics."""

from __future__ import annotations

import pytest

from sessions.reproduction.command_lines import session_commands
from workbench.scripts import comparison, plan

SLEEP = """
import os, time, workbench
slow = "workers=2" in os.environ["WORKBENCH_SETTINGS"]
for batch in workbench.watch(range({steps})):
    time.sleep(0.024 if slow else 0.012)  # much longer than a step waits for a core
"""


def test_a_slower_side_is_found_slower(run, write):
    script = write(SLEEP.format(steps=10**6))
    words = ("ab", "--b", "workers=2", "--budget", "300", "--steps", "10", "--expect", "slower")
    result = run(*words, script=(script,))
    assert result.code == 0, result.out + result.err
    assert "B is SLOWER than A" in result.out
    session = result.session
    (comparison,) = session.comparisons
    assert comparison.verdict == "SLOWER"
    assert 1.3 < comparison.ratio < 2.7
    assert sorted(comparison.order[:2]) == [0, 1]
    assert len(set(comparison.pairs)) * 2 == len(comparison.order)
    assert comparison.facts["pairs"] >= 8
    base, other = session.segments
    assert base.label.startswith("A: ")
    assert other.configuration.toggles == {"workers": "2"}
    assert set(other.steps["block"]) <= set(range(1, len(comparison.order) + 1))
    assert "ab --b workers=2" in session_commands(session).replace("--a workers=default ", "")


@pytest.mark.parametrize(("code", "returned"), [(5, 5), (3, 1)])
def test_a_failing_process_ends_the_comparison_with_its_code_and_words(run, write, code, returned):
    """But not with the code of a verdict that is undecided."""
    script = write(f"import sys; print('no data'); sys.exit({code})")
    result = run("ab", "--b", "workers=2", script=(script,), saved=False)
    assert result.code == returned
    assert f"A: The script ended with exit code {code}." in result.err
    assert "no data" in result.err


def test_a_script_without_steps_has_no_verdict(run, write):
    result = run("ab", "--b", "workers=2", script=(write("pass"),), saved=False)
    assert result.code == 1
    assert "There is no verdict: the script made no steps." in result.err


HANGING = """
import os, time, workbench
hangs = "workers=2" in os.environ["WORKBENCH_SETTINGS"]
for batch in workbench.watch(range(40)):
    time.sleep(0.012)
time.sleep(600 * hangs)
"""


def test_a_first_process_that_never_steps_ends_the_comparison(run, write, monkeypatch):
    monkeypatch.setattr(plan, "FIRST_STEP_S", 0.5)
    script = (write("import time\ntime.sleep(600)"),)
    result = run("ab", "--b", "workers=2", script=script, saved=False)
    assert result.code == 1
    assert "A: The script was ended: it made no step in 0.5 s." in result.err


def test_a_process_that_hangs_is_ended_and_its_block_is_void(run, write, monkeypatch):
    monkeypatch.setattr(comparison, "HANG_FACTOR", 1.0)
    monkeypatch.setattr(comparison, "HANG_S", 1.0)
    words = ("ab", "--b", "workers=2", "--budget", "1")
    result = run(*words, script=(write(HANGING),))
    assert result.code == 0, result.out + result.err
    (measured,) = result.session.comparisons
    first, second = measured.voids
    assert not first and "seemed to hang" in second
