"""The window over a runner on another host: whose clock is off, and whose name stands below."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from PySide6.QtWidgets import QFileDialog, QInputDialog

from workbench.client import runner_command
from workbench.ui.dialogs import runner_files
from workbench.ui.status import StatusBar
from workbench.ui.workspace import Workspace

FAKE = Path(__file__).parents[1] / "fake_runner.py"
SKEW_S = 3600.0
SKEWED = f"""
import runpy, time
real = time.time
time.time = lambda: real() + {{skew}}
runpy.run_path({str(FAKE)!r}, run_name="__main__")
"""


@pytest.fixture(params=[SKEW_S, -SKEW_S], ids=["ahead", "behind"])
def elsewhere(qtbot, request):
    """A workspace whose fake runner has a wall clock that is an hour off."""
    command = shlex.join((sys.executable, "-c", SKEWED.format(skew=request.param)))
    with runner_command.use(command):
        workspace = Workspace()
        workspace.run.start_runner()
        qtbot.waitUntil(lambda: workspace.run.state == "idle")
        yield workspace
        workspace.close()


def test_a_note_stands_where_it_was_made_though_the_clocks_are_an_hour_apart(qtbot, elsewhere):
    workspace = elsewhere
    workspace.runs.start()
    qtbot.waitUntil(lambda: any(segment.steps.rows for segment in workspace.session.shown.segments))
    workspace.session.add_note("here")
    (note,) = [event for event in workspace.session.shown.events if event.kind == "note"]
    newest = workspace.session.shown.segments[-1].steps["t_s"][-1]
    assert newest - 1 < note.t_s < newest + 20


def test_the_status_bar_names_the_host_and_the_command_and_nothing_in_it_is_markup(
    qtbot, elsewhere
):
    bar = StatusBar(
        elsewhere.session,
        elsewhere.run,
        elsewhere.configuration,
        elsewhere.run_control,
        elsewhere.theme,
    )
    qtbot.addWidget(bar)
    elsewhere.configuration.catalogue.environment["host"] = "<b>gpuhost</b>"
    elsewhere.configuration.catalogueChanged.emit()
    device = bar._facts["device"]
    bar.show()
    qtbot.waitUntil(lambda: device.text() == "NVIDIA H200 on <b>gpuhost</b>")
    assert device.textFormat().name == "PlainText"
    assert "fake_runner.py" in device.toolTip() and "&#x27;" not in device.toolTip()
    bar.close_timer()


def test_a_file_of_the_runners_is_asked_for_by_its_path_there(qtbot, elsewhere, monkeypatch):
    labels = []

    def answer(parent, title, label, text=""):
        labels.append(label)
        return " /data/text.txt ", True

    monkeypatch.setattr(QInputDialog, "getText", answer)
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: pytest.fail("of this host"))
    elsewhere.configuration.catalogue.environment["host"] = "gpuhost"
    bar = StatusBar(
        elsewhere.session,
        elsewhere.run,
        elsewhere.configuration,
        elsewhere.run_control,
        elsewhere.theme,
    )
    qtbot.addWidget(bar)
    assert runner_files.existing(elsewhere.configuration.catalogue, bar, "Text") == "/data/text.txt"
    assert labels == ["Path on gpuhost:"]
    bar.close_timer()
