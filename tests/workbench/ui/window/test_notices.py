"""Tests of what happens to unsaved work, and of notices: files, new sessions, long measurements."""

import time

import msgspec
import pytest
from fake_session import messages
from PySide6.QtCore import QCoreApplication, QEvent, QPoint
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import QMessageBox, QPushButton, QToolButton
from synthetic import gpu_session

from sessions.storage import hdf5
from workbench import protocol
from workbench.client import journal
from workbench.titles import distinct
from workbench.ui import docks, notices
from workbench.ui.demo import WindowStage
from workbench.ui.dialogs import message_boxes
from workbench.ui.panels import failure


@pytest.fixture
def worked(qtbot, ready):
    """The window with a short run of its own that nobody saved."""
    ready.workspace.runs.start()
    qtbot.waitUntil(lambda: len(steps(ready)) > 5)
    ready.workspace.run.stop()
    qtbot.waitUntil(lambda: ready.workspace.run.state == "idle")
    return ready


def steps(window):
    segments = window.workspace.session.recorder.session.segments
    return segments[-1].steps["t_s"] if segments else []


def sentences(window):
    return [banner.sentence.text() for banner in window.failures.banners]


def test_a_new_session_keeps_the_runner_and_says_where_the_one_before_is(qtbot, worked):
    session, reader = worked.workspace.session, worked.workspace._link._reader
    before, path = session.recorder.session, session.journal.path
    worked.actions_["new"].trigger()
    assert worked.workspace._link._reader is reader and worked.workspace.run.state == "idle"
    assert session.shown.segments == [] and session.journal.path != path
    assert any(str(path) in sentence for sentence in sentences(worked))
    worked.workspace.run.restore_session()
    assert session.shown is before and session.journal.path == path and not session.saved


def test_a_new_session_begins_without_failures_of_the_one_before(qtbot, worked):
    panel, failed = worked.failures, protocol.Failure(kind="oom", sentence="Out of memory.")
    for number in range(2 * failure.SHOWN):
        panel.show_failure(msgspec.structs.replace(failed, sentence=f"Failure {number}."))
    assert panel.banners and panel._timer.isActive(), "a failure waits to be shown"
    worked.actions_["new"].trigger()
    panel._show_waiting()
    assert len(sentences(worked)) == 1 and sentences(worked)[0].startswith("New session.")
    panel.show_failure(failed)
    assert failed.sentence in sentences(worked), "a failure of the new session is shown"


def test_what_runs_in_the_new_session_is_its_own_and_in_its_journal(qtbot, worked):
    session = worked.workspace.session
    old = session.journal.path
    count = len(session.recorder.session.segments)
    worked.actions_["new"].trigger()
    worked.workspace.runs.start()
    qtbot.waitUntil(lambda: len(steps(worked)) > 5)
    worked.workspace.run.stop()
    qtbot.waitUntil(lambda: worked.workspace.run.state == "idle")
    assert not session.restore(), "a session with data is not thrown away"
    assert not any("New session" in sentence for sentence in sentences(worked))
    assert len(journal.recover(old).segments) == count
    again = journal.recover(session.journal.path)
    assert [s.index for s in again.segments] == [s.index for s in session.shown.segments] == [0]
    assert again.environment == session.shown.environment


class Clicked(QCloseEvent):
    """A close event as the window system sends it."""

    def spontaneous(self):
        return True


def ask_to_close(window):
    window.closeEvent(event := Clicked())
    return event.isAccepted(), window.findChild(QMessageBox)


def test_closing_with_unsaved_work_asks(worked, monkeypatch):
    accepted, box = ask_to_close(worked)
    assert not accepted and "is not saved" in box.text()
    closed = []
    monkeypatch.setattr(worked, "close", lambda: closed.append(True))
    box.button(QMessageBox.StandardButton.Cancel).click()
    assert not closed
    QCoreApplication.sendPostedEvents(box, QEvent.Type.DeferredDelete)
    worked.actions_["quit"].trigger()
    worked.findChild(QMessageBox).button(QMessageBox.StandardButton.Discard).click()
    assert closed == [True]


def test_closing_can_save_first(qtbot, worked, monkeypatch, tmp_path):
    path, closed = tmp_path / "saved.h5", []
    monkeypatch.setattr(message_boxes, "file_to_write", lambda *_: path)
    monkeypatch.setattr(worked, "close", lambda: closed.append(path.exists()))
    _, box = ask_to_close(worked)
    box.button(QMessageBox.StandardButton.Save).click()
    qtbot.waitUntil(lambda: closed == [True])
    assert hdf5.load(path).segments


def test_an_empty_or_saved_session_closes_without_a_question(ready, monkeypatch):
    closed = []
    monkeypatch.setattr(ready, "close", lambda: closed.append(True))
    ready.quit()
    assert closed and ready.findChild(QMessageBox) is None


def test_a_written_file_is_confirmed_with_its_folder(ready, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(notices, "_open", opened.append)
    for name in ("one.png", "two.png"):
        ready.workspace.tasks.wrote.emit(tmp_path / name)
    assert [s for s in sentences(ready) if "Written" in s] == [f"Written: {tmp_path / 'two.png'}"]
    banner = ready.failures.banners[0]
    (button,) = (b for b in banner.findChildren(QPushButton) if b.text() == "Open folder")
    button.click()
    assert opened == [tmp_path]


def test_a_notice_comes_after_other_banners_took_the_place_of_the_one_before(
    qtbot, ready, tmp_path
):
    for name in ("one.png", "two.png"):
        ready.workspace.tasks.wrote.emit(tmp_path / name)
        assert f"Written: {tmp_path / name}" in sentences(ready)
        for number in range(failure.SHOWN):
            ready.failures.show_banner("bad", f"failure {number}")
        assert not any("Written" in sentence for sentence in sentences(ready))
        qtbot.wait(10)  # until the banner is deleted


def test_the_demo_continues_after_its_caption_was_dismissed(qtbot, ready):
    stage = WindowStage(ready)
    for number in range(2):
        stage.caption(f"Caption {number}.", "")
        assert sentences(ready) == [f"Caption {number}."]
        ready.failures.banners[0].findChild(QToolButton).click()
        qtbot.wait(10)  # until the banner is deleted


def test_a_long_measurement_tells_that_it_ended_and_a_short_one_does_not(ready, monkeypatch):
    run = ready.workspace.run
    monkeypatch.setattr(ready, "isActiveWindow", lambda: False)
    for long_s, expected in ((3600.0, 0), (0.0, 1)):
        monkeypatch.setattr(notices, "LONG_S", long_s)
        run.measures = True
        run.set_state("running", "")
        run.set_state("idle", "")
        assert sum("measurement ended" in s for s in sentences(ready)) == expected
    run.set_state("running", "")
    assert not any("measurement ended" in s for s in sentences(ready)), "another one runs"


def test_who_looks_at_the_window_gets_no_banner_about_a_measurement(ready, monkeypatch):
    monkeypatch.setattr(notices, "LONG_S", 0.0)
    monkeypatch.setattr(ready, "isActiveWindow", lambda: True)
    run = ready.workspace.run
    run.measures = True
    run.set_state("running", "")
    run.set_state("idle", "")
    assert sentences(ready) == []


def test_a_journal_is_described_by_what_ran_when(tmp_path):
    path, lines = tmp_path / "left.journal", list(messages())
    path.write_bytes(b"".join(protocol.encode(message) for message in lines))
    summary = journal.summarize(path)
    first = next(m for m in lines if isinstance(m, protocol.SegmentStarted))
    begun = time.strftime("%H:%M", time.localtime(lines[0].created + first.t_s))
    assert summary.segments == 6
    assert summary.text().startswith(f"{first.configuration.title}, ")
    assert begun in summary.text() and summary.text().endswith(", 6 segments")


def test_a_floating_panel_is_on_the_screen(qtbot, ready):
    dock = ready.dock_area.docks["events"]
    dock.setFloating(True)
    dock.move(QPoint(5000, -900))
    dock.resize(9000, 300)
    docks.fit(dock)
    room = dock.screen().availableGeometry()
    assert room.contains(dock.frameGeometry())


def test_the_first_window_fits_the_screen(window):
    window._restore()
    room = window.screen().availableGeometry()
    assert window.width() <= room.width() and window.height() <= room.height()


def test_sessions_of_one_title_are_told_apart():
    sessions = [gpu_session(1, 5, seed=seed, title="hydra tiny train") for seed in (0, 600, 600)]
    labels = distinct(sessions)
    assert len(set(labels)) == 3 and all(label.startswith("hydra tiny train,") for label in labels)
    assert distinct([*sessions[:1], gpu_session(1, 5, title="other")])[0] == "hydra tiny train"


def test_the_title_of_the_window_follows_the_run(ready):
    ready.workspace.run.set_state("running", "")
    assert " - running" in ready.windowTitle()
    ready.workspace.run.set_state("idle", "")
    assert "running" not in ready.windowTitle()
