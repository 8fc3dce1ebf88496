"""The few dialogs: where one may type at once, and what they say."""

from __future__ import annotations

from fake_catalogue import catalogue
from PySide6.QtWidgets import QDialog, QPlainTextEdit

from workbench import protocol
from workbench.ui import dialogs
from workbench.ui.actions import ACTIONS
from workbench.ui.panels._plot_keys import PLOT_KEYS


def opened(window) -> QDialog:
    (dialog,) = (one for one in window.findChildren(QDialog) if one.isVisible())
    return dialog


def test_notes_can_be_typed_at_once_after_those_that_are_there(window):
    window.state.session.notes = "before"
    dialogs.notes(window)
    dialog = opened(window)
    edit = dialog.findChild(QPlainTextEdit)
    assert dialog.focusWidget() is edit and edit.textCursor().position() == len("before")
    dialog.reject()


def test_every_shortcut_is_listed_beside_what_it_does(window):
    window.actions_["shortcuts"].trigger()
    lines = opened(window).findChild(QPlainTextEdit).toPlainText().splitlines()
    for action in ACTIONS:
        if action.shortcut and action.menu:
            assert any(line.split() and line.split()[0] == action.shortcut for line in lines), (
                action.id
            )
    assert "File" in lines and not any("&" in line for line in lines)
    for key in PLOT_KEYS:
        (line,) = [line for line in lines if line.startswith(f"  {', '.join(key.keys)} ")]
        assert line.endswith(f" {key.text}")


def test_the_doctor_ends_each_sentence(state):
    state._take(catalogue())
    reason = protocol.Blocked("xformers is not installed", "Install the extra")
    state.availability = protocol.Availability(
        configuration=state.configuration, problems=[], blocked={"attention": {"xformers": reason}}
    )
    text = dialogs.doctor_text(state)
    assert "Attention backend: xFormers: xformers is not installed. Install the extra." in text
