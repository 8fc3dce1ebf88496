"""Journals replayed in the window."""

from __future__ import annotations

from fake_session import messages
from shown_window import opened

from workbench import protocol


def test_a_replayed_journal_fills_the_window_and_cannot_be_run(qapp, qtbot, settings, tmp_path):
    from workbench.ui.connection.replay import ReplayedRunner
    from workbench.ui.workspace import Workspace

    path = tmp_path / "run.journal"
    path.write_bytes(b"".join(protocol.encode(message) for message in messages()) + b'{"cut')
    workspace = Workspace(launch=lambda _: ReplayedRunner(path, 0), replaying=True)
    with opened(qapp, workspace, settings) as window:
        workspace.run.start_runner()
        qtbot.waitUntil(lambda: workspace.run.text == "The replay has ended")
        assert len(workspace.session.shown.segments) == 6
        assert workspace.configuration.edited == workspace.session.shown.segments[-1].configuration
        assert not window.actions_["run"].isEnabled()
        assert "replay" in window.actions_["run"].toolTip()
        workspace.run.set_state("running", "")
        for name in ("stop", "pause"):  # they would do nothing
            assert not window.actions_[name].isEnabled()
            assert "replay" in window.actions_[name].toolTip()
        assert window.actions_["cancel"].isEnabled()


def test_a_file_that_is_no_journal_is_told_and_not_waited_for(qtbot, tmp_path):
    from workbench.ui.connection.replay import ReplayedRunner
    from workbench.ui.workspace import Workspace

    path = tmp_path / "session.h5"
    path.write_bytes(b"\x89HDF\r\n" * 9)
    workspace = Workspace(launch=lambda _: ReplayedRunner(path, 0), replaying=True)
    workspace.run.start_runner()
    qtbot.waitUntil(lambda: workspace.run.text == "The replay has ended")
    workspace.close()
    (failure,) = workspace.failures.recent
    assert failure.sentence == f"{path}: no message in it; a journal has one JSON message per line."


def test_a_replay_keeps_the_recorded_pace(qtbot, tmp_path):
    import time

    from workbench.ui.connection.replay import ReplayedRunner

    path = tmp_path / "slow.journal"
    notes = [protocol.Note(t_s=t_s, kind="note", text="") for t_s in (0.0, 200.0, 600.0)]
    path.write_bytes(b"".join(map(protocol.encode, notes)))
    runner = ReplayedRunner(path, speed=2000.0)
    began = time.monotonic()
    played = runner.messages()
    times = [(next(played).t_s, time.monotonic() - began) for _ in notes]
    runner.close()
    for t_s, seen_s in times:  # at the speed of the recording it would take ten minutes
        assert t_s / 2000 - 0.01 <= seen_s
