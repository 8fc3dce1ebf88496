"""A person builds, runs, toggles, pauses and stops, with clicks, against the fake runner."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QToolButton
from test_panels import panel

from sessions.storage import hdf5
from sessions.tables import segments_table
from workbench.ui.demo import Demo


def click(qtbot, window, action):
    qtbot.mouseClick(
        window.toolbar.widgetForAction(window.actions_[action]), Qt.MouseButton.LeftButton
    )


def test_a_double_click_on_run_starts_one_run(qtbot, ready):
    """The second start ended the first run, whose segment without steps was the baseline."""
    run, segments = ready.workspace.run, ready.workspace.session.shown.segments
    ready.actions_["run"].trigger()
    ready.actions_["run"].trigger()
    qtbot.waitUntil(lambda: bool(segments) and len(segments[-1].steps["t_s"]) > 5)
    run.stop()
    qtbot.waitUntil(lambda: run.state == "idle")
    assert len(segments) == 1
    ready.actions_["run"].trigger()
    qtbot.waitUntil(lambda: len(segments) == 2)


def test_a_journal_that_cannot_be_written_is_told_once_and_the_run_goes_on(
    qtbot, window, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    workspace = window.workspace
    workspace.run.start_runner()
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    click(qtbot, window, "run")
    qtbot.waitUntil(lambda: workspace.run.state == "running")
    workspace.configuration.set_toggle("triton", "on")
    qtbot.waitUntil(lambda: len(workspace.session.shown.segments) == 2)
    workspace.session.add_note("still here")
    click(qtbot, window, "stop")
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    (failure,) = workspace.failures.recent
    assert (
        failure.kind == "journal"
        and "a crash would lose everything that is not saved" in failure.sentence
    )
    assert workspace.session.shown.segments[1].configuration.toggles["triton"] == "on"
    assert not workspace.session.saved
    window.workspace.run.begin_session()


class Stage:
    """A record of what the demo shows."""

    def __init__(self, settled=lambda: True):
        self.captions, self.settled = [], settled

    def caption(self, sentence, detail):
        self.captions.append(sentence)

    def bring(self, panel):
        self.captions.append(panel)

    reveal = bring


def test_the_demo_explains_what_happens_and_says_each_verdict(qtbot, workspace, tmp_path):
    stage, printed = Stage(), []
    demo = Demo(workspace, tmp_path, printed.append, stage)
    workspace.run.start_runner()
    with qtbot.waitSignal(demo.ended):
        demo.start()
    assert not demo.outcome.failures
    graphs, half = demo.outcome.verdicts
    assert graphs.startswith("Fused AdamW and CUDA graphs: 1.2")
    assert half.startswith("BF16 mixed precision: 1.2") and "x faster (95 % interval " in half
    assert {half, "verdict", "precision", "adamw"} <= set(stage.captions)
    assert "BF16 mixed precision is switched on while the model runs." in stage.captions
    first, second = (run.facts["segments"] for run in workspace.session.shown.comparisons)
    a, b, c, d = (
        workspace.session.shown.segments[index].configuration for index in [*first, *second]
    )
    assert (a.toggles["cuda_graphs"], b.toggles["cuda_graphs"]) == ("off", "on")
    assert c == b and d.toggles["precision"] == "amp_bf16"


def test_the_demo_goes_on_without_a_journal_and_fails_where_nothing_can_be_saved(
    qtbot, workspace, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    printed = []
    demo = Demo(workspace, tmp_path / "out", printed.append, Stage())
    workspace.run.start_runner()
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    assert len(printed) == 1 and printed[0].startswith("The journal /dev/null/workbench/")
    assert demo.outcome.failures == []
    demo._file, demo._script = Path("/dev/null/out/demo.h5"), demo._keep()
    with qtbot.waitSignal(demo.ended):
        demo.start()
    (failure,) = demo.outcome.failures
    assert "was not saved" in failure.sentence and printed[-1] == failure.sentence_with_fix
    assert demo.outcome.paths == []


def test_the_demo_ends_once_the_window_shows_all_that_it_saved(qtbot, ready, tmp_path):
    segments = panel(ready, "segments")
    workspace = ready.workspace
    click(qtbot, ready, "run")
    qtbot.waitUntil(lambda: workspace.run.state == "running")
    qtbot.waitUntil(lambda: workspace.session.shown.segments[0].steps.rows > 5)
    looks = []

    def settled():
        looks.append(ready.settled())
        return len(looks) > 3 and looks[-1]

    demo = Demo(workspace, tmp_path, lambda _: None, Stage(settled))
    demo._script = demo._keep()
    click(qtbot, ready, "stop")
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    demo.start()
    with qtbot.waitSignal(demo.ended):
        pass
    assert len(looks) > 3
    assert segments.model.table == segments_table(
        workspace.session.shown, workspace.session.baseline
    )
    assert ready.status._facts["file"].text() == "Saved: demo.h5"
    workspace.session.add_note("after the file was written")
    assert ready.status._names["file"]._whole == "Newer than demo.h5"
    assert "Demo: HYDRA, training" in ready.windowTitle()
    assert hdf5.load(tmp_path / "demo.h5").segments[0].steps.rows == (
        workspace.session.shown.segments[0].steps.rows
    )


def test_a_run_can_be_driven_with_clicks_from_start_to_stop(qtbot, ready):
    workspace = ready.workspace
    click(qtbot, ready, "run")
    qtbot.waitUntil(lambda: workspace.run.state == "running")
    qtbot.waitUntil(lambda: workspace.session.shown.segments[0].steps.rows > 5)
    assert "Running" in ready.status.runner.text()

    row = ready.toggles.rows["triton"]
    on = next(button for button in row.findChildren(QToolButton) if button.text() == "On")
    qtbot.mouseClick(on, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: len(workspace.session.shown.segments) == 2)
    assert workspace.session.shown.segments[1].configuration.toggles["triton"] == "on"
    qtbot.waitUntil(lambda: not workspace.configuration.pending)
    qtbot.waitUntil(lambda: workspace.run.state == "running")  # a build cannot be paused

    click(qtbot, ready, "pause")
    qtbot.waitUntil(lambda: workspace.run.state == "paused")
    assert ready.actions_["pause"].text() == "Resume"
    ready.actions_["pause"].trigger()
    qtbot.waitUntil(lambda: workspace.run.state == "running")
    click(qtbot, ready, "stop")
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    assert not workspace.failures.recent
