"""Actions of the user while the file of a session is being read."""

from __future__ import annotations

import threading

import pytest
from hang_limit import HANG_S
from PySide6.QtWidgets import QApplication, QPushButton
from test_window_files import drop, measure, saved

from workbench.ui.state import session_files

__all__ = ["saved"]  # a fixture


@pytest.fixture
def slowly(monkeypatch):
    """An event that lets sessions be read; until then a file is being opened."""
    go_on, read = threading.Event(), session_files.read

    def read_later(path):
        assert go_on.wait(HANG_S)
        return read(path)

    monkeypatch.setattr(session_files, "read", read_later)
    yield go_on
    go_on.set()


def test_a_run_that_starts_while_a_file_is_read_stays_in_view(qtbot, ready, saved, slowly):
    session = ready.workspace.session
    ready.open_path(saved[0])
    ready.actions_["run"].trigger()
    assert session.opening is None
    slowly.set()
    qtbot.waitUntil(lambda: bool(session.shown.segments))
    ready.workspace.tasks.wait()
    QApplication.processEvents()
    assert session.live
    (banner,) = ready.failures.banners
    assert "one.h5" in banner.sentence.text()
    banner.findChild(QPushButton).click()
    qtbot.waitUntil(lambda: session.path == saved[0])


def test_a_session_is_not_renamed_or_saved_while_another_is_about_to_be_shown(
    qtbot, ready, saved, slowly
):
    measure(qtbot, ready)
    ready.open_path(saved[0])
    for name in ("rename", "notes", "note", "save", "save-as", "export", "report"):
        assert not ready.actions_[name].isEnabled(), name
        assert "one.h5 is being opened." in ready.actions_[name].toolTip()
    ready.actions_["show-live"].trigger()  # without waiting for the file
    assert ready.actions_["rename"].isEnabled() and ready.workspace.session.opening is None


def test_a_file_dropped_while_another_is_read_is_compared_with_it(qtbot, ready, saved, slowly):
    assert drop(ready, saved[0]) and drop(ready, saved[1])
    slowly.set()
    session, compared = ready.workspace.session, ready.workspace.compared
    qtbot.waitUntil(lambda: session.shown.title == "one")
    qtbot.waitUntil(lambda: [other.title for other in compared.sessions] == ["two"])


@pytest.mark.parametrize("readable", [True, False])
def test_a_file_that_is_being_read_is_named_in_the_window(qtbot, ready, saved, slowly, readable):
    """A journal of half an hour takes seconds to read."""
    if not readable:
        saved[0].write_bytes(b"not HDF5 at all")
    title, before = ready._title, ready._title._whole
    ready.open_path(saved[0])
    assert title._whole == "Opening one.h5 …"
    slowly.set()
    expected = "one  (opened file)" if readable else before
    qtbot.waitUntil(lambda: title._whole == expected)
