"""A measurement in the middle of a run: the run resumes after it, unless the user stopped it."""

from __future__ import annotations

import pytest

from workbench import protocol

REQUESTS = {
    "sweep": lambda workspace: workspace.sweeps.run(),
    "checklist": lambda workspace: workspace.checklists.check(),
    "attribution": lambda workspace: workspace.attributions.run(),
    "optimization": lambda workspace: workspace.optimizations.run(),
    "verdict": lambda workspace: workspace.verdicts.judge(
        workspace.configuration.edited, workspace.configuration.edited
    ),
}


@pytest.fixture
def running(qtbot, ready):
    """The workspace while a run of two steps or more is in progress, and one toggle is on."""
    workspace = ready.workspace
    workspace.configuration.set_toggle("rope_cache", "shared")
    workspace.runs.start()
    qtbot.waitUntil(lambda: in_run(workspace))
    return workspace


def in_run(workspace) -> bool:
    return (
        workspace.run.state == "running"
        and not workspace.run.measures
        and not workspace.measurements.busy
        and not workspace.measurements.resumes
    )


def measured(workspace) -> int:
    session = workspace.session.shown
    return len(session.studies) + len(session.comparisons)


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", REQUESTS)
def test_the_run_resumes_as_it_was_after_a_measurement(qtbot, running, kind):
    before = running.run.running
    REQUESTS[kind](running)
    assert running.measurements.busy and running.run.continued == before
    qtbot.waitUntil(lambda: measured(running) == 1)
    qtbot.waitUntil(lambda: in_run(running) and running.run.running == before)
    assert running.session.shown.segments[-1].configuration == before
    assert running.verdict_prompt.offer is None, "the run that resumes is no change of toggles"


def test_a_paused_run_is_paused_again_after_a_measurement(qtbot, running):
    running.run.pause()
    qtbot.waitUntil(lambda: running.run.state == "paused")
    before = running.run.running
    REQUESTS["verdict"](running)
    qtbot.waitUntil(lambda: measured(running) == 1 and not running.measurements.busy)
    qtbot.waitUntil(lambda: running.run.state == "paused" and running.run.running == before)
    running.run.resume()
    qtbot.waitUntil(lambda: in_run(running))


@pytest.mark.parametrize("kind", ["sweep", "attribution"])
def test_the_run_stays_ended_after_a_measurement_that_the_user_stopped(qtbot, running, hold, kind):
    hold.touch()
    REQUESTS[kind](running)
    qtbot.waitUntil(lambda: running.run.measures and measured(running) == 1)
    running.run.stop()
    qtbot.waitUntil(lambda: running.run.state == "idle")
    qtbot.wait(300)
    assert running.run.state == "idle" and not running.measurements.busy


def test_nothing_starts_after_a_measurement_that_interrupted_no_run(qtbot, ready):
    workspace = ready.workspace
    workspace.sweeps.run()
    qtbot.waitUntil(lambda: measured(workspace) == 1 and not workspace.measurements.busy)
    qtbot.wait(300)
    assert workspace.run.state == "idle"


def test_a_lost_runner_leaves_no_measurement_pending(qtbot, running, hold):
    hold.touch()
    ended = []
    running.measurements.ended.connect(lambda command, reason: ended.append((command, reason)))
    running.sweeps.run()
    qtbot.waitUntil(lambda: running.sweeps.measuring)
    running.run.start_runner()
    assert not running.measurements.busy and not running.sweeps.measuring
    ((command, reason),) = ended
    assert isinstance(command, protocol.Sweep) and reason == "lost"
    qtbot.waitUntil(lambda: running.run.state == "idle")
