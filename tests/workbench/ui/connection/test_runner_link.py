"""A runner that dies, babbles, hangs or does not hear ends as a banner, with the session intact."""

from __future__ import annotations

import os
import signal
import threading

import msgspec
import psutil
import pytest
from process_end import command_of
from PySide6.QtCore import QThread, QTimer
from PySide6.QtWidgets import QPushButton

from workbench import protocol
from workbench.client.journal import recover
from workbench.client.runner_process import Runner
from workbench.ui.connection import runner_link
from workbench.ui.connection.stream_reader import StreamReader
from workbench.ui.workspace import Workspace


def run(qtbot, window, data="synthetic"):
    workspace = window.workspace
    workspace.configuration.edit(msgspec.structs.replace(workspace.configuration.edited, data=data))
    workspace.runs.start()


def rows_of(workspace, segment=0):
    segments = workspace.session.shown.segments
    return segments[segment].steps.rows if len(segments) > segment else 0


def children():
    return [child for child in psutil.Process().children() if "fake_runner" in command_of(child)]


def test_a_killed_runner_leaves_the_session_and_a_button_for_a_new_one(qtbot, ready):
    workspace = ready.workspace
    run(qtbot, ready)
    qtbot.waitUntil(lambda: rows_of(workspace) > 20)
    os.kill(children()[0].pid, signal.SIGKILL)
    qtbot.waitUntil(lambda: workspace.run.state == "dead")
    rows = workspace.session.shown.segments[0].steps.rows
    assert rows > 20
    banner = ready.failures.banners[0]
    assert "SIGKILL" in banner.sentence.text()
    assert not ready.actions_["run"].isEnabled()

    button = next(
        button
        for button in banner.findChildren(QPushButton)
        if button.text() == "Start a new runner"
    )
    button.click()
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    workspace.runs.start()
    qtbot.waitUntil(lambda: rows_of(workspace, 1) > 3)
    assert workspace.session.shown.segments[0].steps.rows == rows
    assert (
        workspace.session.shown.segments[1].start_s
        > workspace.session.shown.segments[0].steps["t_s"][-1]
    )


def test_a_runner_started_from_the_menu_leaves_no_button_that_would_end_it(qtbot, ready):
    workspace = ready.workspace
    workspace.failures.report(protocol.Failure(kind="memory", sentence="It does not fit."))
    os.kill(children()[0].pid, signal.SIGKILL)
    qtbot.waitUntil(lambda: workspace.run.state == "dead")
    assert len(ready.failures.banners) == 2
    ready.actions_["restart"].trigger()
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    (left,) = ready.failures.banners
    assert left.sentence.text() == "It does not fit."


def test_what_was_measured_before_a_kill_is_in_the_journal(qtbot, ready):
    workspace = ready.workspace
    run(qtbot, ready)
    qtbot.waitUntil(lambda: rows_of(workspace) > 20)
    os.kill(children()[0].pid, signal.SIGKILL)
    qtbot.waitUntil(lambda: workspace.run.state == "dead")
    again = recover(workspace.session.journal.path)
    assert len(again.segments) == 1
    assert list(again.segments[0].steps["gpu_ms"]) == list(
        workspace.session.shown.segments[0].steps["gpu_ms"]
    )


def test_a_malformed_line_is_left_out_and_reported(qtbot, ready):
    run(qtbot, ready, "malformed")
    qtbot.waitUntil(lambda: ready.workspace.run.state == "running")
    assert [failure.kind for failure in ready.workspace.failures.recent] == ["wire"]
    assert len(ready.failures.banners) == 1


def test_an_out_of_memory_run_is_one_sentence_and_the_runner_stays(qtbot, ready):
    run(qtbot, ready, "oom")
    qtbot.waitUntil(lambda: bool(ready.workspace.failures.recent))
    assert "ran out of memory" in ready.failures.banners[0].sentence.text()
    assert ready.workspace.run.state == "idle"
    assert [event.kind for event in ready.workspace.session.shown.events] == ["error"]


def test_a_runner_that_does_not_answer_is_reported_once(qtbot, ready, monkeypatch):
    monkeypatch.setattr(runner_link, "ANSWER_S", 1.0)
    run(qtbot, ready, "hang")
    qtbot.waitUntil(lambda: bool(ready.workspace.failures.recent))
    assert ready.workspace.failures.recent[0].kind == "hang"
    assert ready.failures.banners[0].findChild(QPushButton).text() == "Start a new runner"
    qtbot.wait(1500)
    assert len(ready.workspace.failures.recent) == 1
    os.kill(children()[0].pid, signal.SIGKILL)
    qtbot.waitUntil(lambda: ready.workspace.run.state == "dead")


def test_a_runner_deaf_to_cancel_is_ended_by_force(qtbot, impatient, ready):
    run(qtbot, ready, "deaf")
    qtbot.waitUntil(lambda: ready.workspace.run.state == "running")
    before = children()
    ready.actions_["cancel"].trigger()
    assert ready.status.runner.text() == "Cancelling"
    qtbot.waitUntil(lambda: ready.workspace.run.state == "idle")
    assert children()[-1] not in before and not ready.failures.banners


def test_a_runner_that_cannot_be_started_is_a_sentence(qtbot, qapp):
    workspace = Workspace(launch=lambda journal: Runner(journal, ("/no/such/program",)))
    with qtbot.waitSignal(workspace.failures.reported) as caught:
        workspace.run.start_runner()
    assert "could not be started" in caught.args[0].sentence
    assert workspace.run.state == "dead"
    workspace.close()


def python_threads():
    """Return Python's own threads; a QThread that ran Python lingers in the list as a dummy."""
    return [t for t in threading.enumerate() if not t.name.startswith("Dummy-")]


@pytest.fixture
def threads_before():
    return set(python_threads())


def test_closing_leaves_no_thread_timer_or_process(qtbot, threads_before, complete_window, ready):
    workspace = ready.workspace
    run(qtbot, ready)
    qtbot.waitUntil(lambda: workspace.run.state == "running")
    workspace.run.start_runner()
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    ready.close()
    qtbot.waitUntil(lambda: not children())
    qtbot.waitUntil(lambda: not any(timer.isActive() for timer in workspace.findChildren(QTimer)))
    # One that fires once, as after a paint, may still be under way.
    qtbot.waitUntil(lambda: not any(timer.isActive() for timer in ready.findChildren(QTimer)))
    qtbot.waitUntil(lambda: not any(t.isRunning() for t in workspace.findChildren(QThread)))
    qtbot.waitUntil(lambda: not set(python_threads()) - threads_before)


def test_the_window_is_told_of_messages_once_until_it_takes_them(qapp, qtbot):
    class Fast:
        def messages(self):
            from workbench.protocol import Note

            for number in range(5000):
                yield Note(kind="note", text=str(number))

        def close(self):
            pass

    reader = StreamReader(Fast)
    signals = []
    reader.arrived.connect(lambda: signals.append(1))
    reader.start()
    reader.wait()
    qapp.processEvents()
    assert len(signals) == 1
    taken = []
    while (message := reader.next_message()) is not None:
        taken.append(message.text)
    assert taken == [str(number) for number in range(5000)]
