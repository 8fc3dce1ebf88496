"""Sessions in the window: saved, opened, compared, dropped, renamed, noted, recovered."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from fake_session import session
from hang_limit import HANG_S
from PySide6.QtCore import QMimeData, QPointF, Qt, QUrl
from PySide6.QtGui import QDragEnterEvent, QDropEvent
from PySide6.QtWidgets import QApplication, QInputDialog, QPushButton

from sessions.storage import hdf5
from workbench import protocol, state_folder
from workbench.client import journal
from workbench.ui.app import offer_recovery
from workbench.ui.state import session_files


@pytest.fixture
def saved(tmp_path):
    """Two session files."""
    paths = [tmp_path / "one.h5", tmp_path / "two.h5"]
    for path in paths:
        hdf5.save(session(path.stem), path)
    return paths


def measure(qtbot, window):
    workspace = window.workspace
    workspace.runs.start()
    qtbot.waitUntil(lambda: bool(workspace.session.shown.segments))
    qtbot.waitUntil(lambda: workspace.session.shown.segments[0].steps.rows > 10)


def drop(window, *paths):
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(path)) for path in paths])
    actions, button, keys = (
        Qt.DropAction.CopyAction,
        Qt.MouseButton.LeftButton,
        Qt.KeyboardModifier.NoModifier,
    )
    enter = QDragEnterEvent(QPointF(50, 50).toPoint(), actions, data, button, keys)
    window.dragEnterEvent(enter)
    if enter.isAccepted():
        window.dropEvent(QDropEvent(QPointF(50, 50), actions, data, button, keys))
    return enter.isAccepted()


def test_a_live_session_saves_as_it_is_and_reads_back(qtbot, ready, tmp_path):
    measure(qtbot, ready)
    ready.workspace.run.stop()
    qtbot.waitUntil(lambda: ready.workspace.run.state == "idle")
    path = tmp_path / "run.h5"
    ready.save_path(path)
    qtbot.waitUntil(lambda: ready.workspace.session.path == path)
    again = hdf5.load(path)
    shown = ready.workspace.session.shown.segments[0].steps["gpu_ms"]
    assert again.segments[0].steps["gpu_ms"].tolist() == shown.tolist()
    assert ready.workspace.session.saved
    assert path in ready.settings.recent


def test_steps_after_a_save_make_the_session_unsaved_again(qtbot, ready, tmp_path):
    measure(qtbot, ready)
    ready.save_path(tmp_path / "run.h5")
    qtbot.waitUntil(lambda: ready.workspace.session.path is not None)
    qtbot.waitUntil(lambda: not ready.workspace.session.saved)


def test_the_first_dropped_file_opens_and_the_second_compares(qtbot, ready, saved):
    assert drop(ready, saved[0])
    qtbot.waitUntil(lambda: ready.workspace.session.shown.title == "one")
    assert not ready.workspace.session.live
    assert drop(ready, saved[1])
    qtbot.waitUntil(lambda: len(ready.workspace.compared.sessions) == 1)
    assert ready.workspace.compared.sessions[0].title == "two"
    ready.actions_["clear-compared"].trigger()
    assert not ready.workspace.compared.sessions


def test_other_files_cannot_be_dropped(ready, tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text("no session")
    assert not drop(ready, other)


def test_an_opened_file_gives_way_to_the_live_session_again(qtbot, ready, saved):
    ready.open_path(saved[0])
    qtbot.waitUntil(lambda: not ready.workspace.session.live)
    qtbot.waitUntil(lambda: "opened file" in ready._title.text())  # once it is laid out
    ready.actions_["show-live"].trigger()
    assert ready.workspace.session.live


def test_a_damaged_file_is_refused_in_a_sentence_and_nothing_changes(qtbot, ready, tmp_path):
    bad = tmp_path / "bad.h5"
    bad.write_bytes(b"not HDF5 at all" * 100)
    before = ready.workspace.session.shown
    ready.open_path(bad)
    qtbot.waitUntil(lambda: bool(ready.workspace.failures.recent))
    assert ready.workspace.session.shown is before
    assert "bad.h5" in ready.failures.banners[0].sentence.text()
    assert "Traceback" not in ready.failures.banners[0].sentence.text()


def test_a_place_that_cannot_be_written_is_a_sentence_and_stays_unsaved(qtbot, ready, tmp_path):
    measure(qtbot, ready)
    ready.save_path(tmp_path / "no" / "such" / "folder" / "run.h5")
    qtbot.waitUntil(lambda: bool(ready.workspace.failures.recent))
    assert "was not saved" in ready.failures.banners[0].sentence.text()
    assert not ready.workspace.session.saved
    assert ready.workspace.failures.recent[-1].fix.endswith("its journal is kept.")


def test_a_new_title_of_a_deleted_file_is_not_saved_and_has_no_journal(qtbot, ready, saved):
    ready.open_path(saved[0])
    qtbot.waitUntil(lambda: not ready.workspace.session.live)
    saved[0].unlink()
    ready.workspace.session.rename("other")
    qtbot.waitUntil(lambda: bool(ready.workspace.failures.recent))
    assert ready.workspace.failures.recent[-1].fix == "Save it under another name."


def test_title_and_notes_are_in_the_journal(qtbot, ready):
    measure(qtbot, ready)
    ready.workspace.session.rename("A better title")
    ready.workspace.session.add_note("fans are loud")
    assert "A better title" in ready.windowTitle()
    again = journal.recover(ready.workspace.session.journal.path)
    assert again.title == "A better title"
    note = next(event for event in again.events if event.kind == "note")
    assert note.text == "fans are loud"
    times = ready.workspace.session.shown.segments[0].steps["t_s"]
    assert times[0] <= note.t_s <= times[-1] + 5


def test_the_note_dialog_adds_a_note(qtbot, ready):
    ready.actions_["note"].trigger()
    dialog = ready.findChild(QInputDialog)
    dialog.setTextValue("warm now")
    dialog.accept()
    assert [event.text for event in ready.workspace.session.shown.events] == ["warm now"]


def test_renaming_an_opened_file_is_kept_in_the_file(qtbot, ready, saved):
    ready.open_path(saved[0])
    qtbot.waitUntil(lambda: not ready.workspace.session.live)
    ready.workspace.session.rename("Renamed")
    ready.workspace.tasks.wait()
    assert hdf5.load(saved[0]).title == "Renamed"


def test_a_file_of_any_name_keeps_a_new_title(qtbot, ready, saved, tmp_path):
    path = saved[0].rename(tmp_path / "one.hdf5")
    ready.open_path(path)
    qtbot.waitUntil(lambda: ready.workspace.session.path == path)
    ready.workspace.session.rename("Renamed")
    ready.workspace.tasks.wait()
    assert hdf5.load(path).title == "Renamed"


def open_own_file(qtbot, ready, folder: Path) -> Path:
    """Save the live session of a run, and open its file; return the file's path."""
    path = folder / "live.h5"
    measure(qtbot, ready)
    ready.save_path(path)
    qtbot.waitUntil(lambda: ready.workspace.session.path == path)
    ready.open_path(path)
    qtbot.waitUntil(lambda: not ready.workspace.session.live)
    return path


def test_renaming_the_live_session_s_own_file_renames_the_live_session(qtbot, ready, tmp_path):
    path = open_own_file(qtbot, ready, tmp_path)
    ready.workspace.session.rename("Renamed")
    ready.workspace.tasks.wait()
    assert hdf5.load(path).title == "Renamed"
    ready.workspace.session.show_live()
    assert ready.workspace.session.shown.title == "Renamed"
    assert journal.recover(ready.workspace.session.journal.path).title == "Renamed"


def test_a_note_in_the_live_session_s_own_file_is_in_the_live_session(qtbot, ready, tmp_path):
    path = open_own_file(qtbot, ready, tmp_path)
    ready.workspace.session.add_note("warm now", 1.5)
    ready.workspace.tasks.wait()
    ready.workspace.session.show_live()
    ready.save_path(path)
    ready.workspace.tasks.wait()
    notes = [event for event in hdf5.load(path).events if event.kind == "note"]
    assert [(note.t_s, note.text) for note in notes] == [(1.5, "warm now")]


def test_a_journal_without_an_end_is_offered_and_recovered(qtbot, ready, monkeypatch):
    left = state_folder.path() / "20260101-000000-999999999.journal"
    with left.open("wb") as file:
        for message in wire():
            file.write(protocol.encode(message))
    empty = state_folder.path() / "20260101-000001-999999998.journal"
    empty.write_bytes(protocol.encode(protocol.State(state="idle")))
    offer_recovery(ready)
    qtbot.waitUntil(lambda: bool(ready.failures.banners))
    assert not empty.exists()
    banner = ready.failures.banners[0]
    assert banner.sentence.text().startswith("Not saved: ")
    recover = next(
        button for button in banner.findChildren(QPushButton) if button.text() == "Recover"
    )
    recover.click()
    qtbot.waitUntil(lambda: len(ready.workspace.session.shown.segments) == 6)
    assert not ready.failures.banners


def test_a_recovered_session_that_was_saved_is_not_offered_again(qtbot, ready, tmp_path):
    left = state_folder.path() / "20260101-000000-999999999.journal"
    elsewhere = tmp_path / "sent.journal"
    for path in (left, elsewhere):
        path.write_bytes(b"".join(map(protocol.encode, wire())))
        ready.open_path(path)
        qtbot.waitUntil(lambda path=path: ready.workspace.session.path == path)
        assert path.exists()
        saved = path.with_suffix(".h5")
        ready.save_path(saved)
        qtbot.waitUntil(lambda saved=saved: ready.workspace.session.path == saved)
        assert len(hdf5.load(saved).segments) == 6
    assert left not in session_files.recoverable()
    assert elsewhere.exists(), "only what would be offered again goes"


def press(banner, text):
    (button,) = (button for button in banner.findChildren(QPushButton) if button.text() == text)
    button.click()


@pytest.mark.parametrize("answer", ["Delete", "Keep"])
def test_discarding_a_journal_asks_before_it_is_gone(qtbot, ready, answer):
    left = state_folder.path() / "20260101-000000-999999999.journal"
    left.write_bytes(b"".join(map(protocol.encode, wire())))
    offer_recovery(ready)
    qtbot.waitUntil(lambda: bool(ready.failures.banners))
    press(ready.failures.banners[0], "Discard")
    (banner,) = ready.failures.banners
    assert "saved nowhere else" in banner.sentence.text() and left.exists()
    press(banner, answer)
    assert left.exists() is (answer == "Keep")
    assert not ready.failures.banners


def test_a_journal_in_use_is_not_offered(qtbot, ready):
    assert str(os.getpid()) in ready.workspace.session.journal.path.name
    measure(qtbot, ready)
    offer_recovery(ready)
    ready.workspace.tasks.wait()
    qtbot.wait(20)
    assert not ready.failures.banners


def test_the_journal_of_a_saved_session_is_not_left_behind(qtbot, ready, tmp_path):
    measure(qtbot, ready)
    ready.workspace.run.stop()
    qtbot.waitUntil(lambda: ready.workspace.run.state == "idle")
    ready.save_path(tmp_path / "run.h5")
    qtbot.waitUntil(lambda: ready.workspace.session.path is not None)
    path = ready.workspace.session.journal.path
    ready.close()
    assert not path.exists()


def test_the_journal_of_an_unsaved_session_stays_when_the_window_closes(qtbot, ready):
    measure(qtbot, ready)
    path = ready.workspace.session.journal.path
    ready.close()
    assert journal.recover(path).segments


def wire():
    from fake_session import messages

    return messages()


def test_what_came_while_a_file_was_written_is_still_unsaved(qtbot, ready, tmp_path, monkeypatch):
    measure(qtbot, ready)
    ready.workspace.run.stop()
    qtbot.waitUntil(lambda: ready.workspace.run.state == "idle")
    go_on = threading.Event()
    monkeypatch.setattr(session_files, "write", lambda *_: go_on.wait(HANG_S))
    ready.save_path(tmp_path / "run.h5")
    ready.workspace.session.add_note("while it was written")
    go_on.set()
    qtbot.waitUntil(lambda: ready.workspace.session.path is not None)
    assert not ready.workspace.session.saved


@pytest.fixture
def slowly(monkeypatch):
    """An event; a file is written once it is set."""
    go_on, write = threading.Event(), session_files.write

    def later(*given):
        assert go_on.wait(HANG_S)
        return write(*given)

    monkeypatch.setattr(session_files, "write", later)
    yield go_on
    go_on.set()  # for a test that failed before


def write_during(monkeypatch, window, method, go_on):
    """Let the file be written only once the window waits for it in this method of its tasks."""
    wait = getattr(window.workspace.tasks, method)

    def set_and_wait():
        go_on.set()
        wait()

    monkeypatch.setattr(window.workspace.tasks, method, set_and_wait)


def stopped(qtbot, window):
    measure(qtbot, window)
    window.workspace.run.stop()
    qtbot.waitUntil(lambda: window.workspace.run.state == "idle")


def test_a_save_that_ends_late_gives_its_path_to_no_other_session(
    qtbot, ready, tmp_path, saved, slowly
):
    stopped(qtbot, ready)
    ready.save_path(tmp_path / "run.h5")
    ready.open_path(saved[0])
    qtbot.waitUntil(lambda: ready.workspace.session.path == saved[0])
    slowly.set()
    qtbot.waitUntil(lambda: ready.workspace.session.saved)
    assert ready.workspace.session.path == saved[0] and ready.workspace.session.shown.title == "one"
    ready.actions_["show-live"].trigger()
    assert ready.workspace.session.path == tmp_path / "run.h5"


def test_a_new_session_is_not_the_one_whose_save_was_still_being_written(
    qtbot, ready, tmp_path, slowly, monkeypatch
):
    stopped(qtbot, ready)
    before, folder = (
        ready.workspace.session.recorder.session.id,
        ready.workspace.session.journal.path.parent,
    )
    ready.save_path(tmp_path / "run.h5")
    write_during(monkeypatch, ready, "wait", slowly)
    ready.workspace.run.begin_session()
    qtbot.wait(50)
    assert ready.workspace.session.path is None and ready.workspace.session._live_path is None
    assert hdf5.load(tmp_path / "run.h5").id == before
    assert [*folder.glob("*.journal")] == [ready.workspace.session.journal.path], (
        "the other is saved"
    )


def test_a_window_closed_while_it_saves_leaves_nothing_to_recover(
    qtbot, ready, tmp_path, slowly, monkeypatch
):
    stopped(qtbot, ready)
    path = ready.workspace.session.journal.path
    ready.save_path(tmp_path / "run.h5")
    write_during(monkeypatch, ready, "close", slowly)
    ready.close()
    assert hdf5.load(tmp_path / "run.h5").segments and not path.exists()


def test_of_two_files_dropped_together_the_second_compares(qtbot, ready, saved):
    assert drop(ready, *saved)
    qtbot.waitUntil(lambda: ready.workspace.session.shown.title == "one")
    qtbot.waitUntil(
        lambda: [session.title for session in ready.workspace.compared.sessions] == ["two"]
    )


def test_of_two_files_opened_one_after_the_other_the_second_is_shown(
    qtbot, ready, saved, monkeypatch
):
    second_shown, read = threading.Event(), session_files.read

    def read_first_last(path):
        assert path == saved[1] or second_shown.wait(HANG_S)
        return read(path)

    monkeypatch.setattr(session_files, "read", read_first_last)
    for path in saved:
        ready.open_path(path)
    qtbot.waitUntil(lambda: ready.workspace.session.path == saved[1])
    second_shown.set()
    ready.workspace.tasks.wait()
    QApplication.processEvents()
    assert ready.workspace.session.path == saved[1] and ready.workspace.session.shown.title == "two"


def test_quick_changes_of_a_file_are_all_in_it_and_the_last_title_stays(qtbot, ready, saved):
    ready.open_path(saved[0])
    qtbot.waitUntil(lambda: not ready.workspace.session.live)
    texts = [f"note {number}" for number in range(4)]
    for text in texts:
        ready.workspace.session.add_note(text)
        ready.workspace.session.rename(text)
    ready.workspace.tasks.wait()
    reread = hdf5.load(saved[0])
    assert [event.text for event in reread.events if event.kind == "note"] == texts
    assert reread.title == texts[-1]


def test_a_recent_file_that_may_not_be_looked_at_is_left_out(ready, saved, monkeypatch):
    for path in saved:
        ready.settings.remember(path)

    def refused(_):
        raise PermissionError

    saved[0].unlink()
    monkeypatch.setattr(type(saved[0]), "exists", refused)  # as in a folder that is not ours
    assert ready.settings.recent == [saved[1]]


def test_only_files_that_were_read_or_written_are_recent(qtbot, ready, saved, tmp_path):
    shown = ready.workspace.session.shown
    broken, folder = tmp_path / "broken.h5", tmp_path / "folder.h5"
    broken.write_bytes(b"no session")
    folder.mkdir()
    ready.open_path(broken)
    qtbot.waitUntil(lambda: bool(ready.workspace.failures.recent))
    ready.save_path(folder)
    qtbot.waitUntil(lambda: len(ready.workspace.failures.recent) == 2)
    assert ready.workspace.session.shown is shown
    assert ready.settings.recent == []
    ready.open_path(saved[0])
    qtbot.waitUntil(lambda: ready.workspace.session.shown.title == "one")
    assert ready.settings.recent == [saved[0]]


def test_no_run_is_in_progress_after_the_window_has_closed(qtbot, ready):
    measure(qtbot, ready)
    run = ready.workspace.run
    assert run.active
    ready.workspace.close()
    assert not run.active and not run.connected
    assert run.elapsed_s == 0 and run.running is None and run.progress is None
