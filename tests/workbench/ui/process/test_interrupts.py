"""Ctrl+C in the terminal of a window: it is closed, and Python's own handling comes back."""

from __future__ import annotations

import os
import signal

import pytest
from PySide6.QtWidgets import QWidget

from workbench.ui.process import sigint as interrupts_
from workbench.ui.process.sigint import Interrupts


@pytest.fixture
def handling():
    """Gives SIGINT another handling, until the end: that of a background job is to ignore it."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_closes_the_window_and_later_does_what_it_did_before(qtbot, monkeypatch, handling):
    handling(signal.default_int_handler)
    exits = []  # the real one would end every later event loop of these tests too
    monkeypatch.setattr(interrupts_.QApplication, "exit", lambda: exits.append(1))
    before = signal.getsignal(signal.SIGINT)
    window = QWidget()
    qtbot.addWidget(window)
    window.show()
    interrupts = Interrupts(window)
    with qtbot.waitSignal(interrupts.pressed):
        os.kill(os.getpid(), signal.SIGINT)
    qtbot.waitUntil(lambda: not window.isVisible())
    assert exits == [1]
    interrupts.end()
    assert signal.getsignal(signal.SIGINT) is before
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    assert descriptor == -1


def test_what_is_to_ignore_interruptions_goes_on_ignoring_them(qtbot, handling):
    handling(signal.SIG_IGN)
    window = QWidget()
    qtbot.addWidget(window)
    window.show()
    interrupts = Interrupts(window)
    pressed = []
    interrupts.pressed.connect(lambda: pressed.append(1))
    os.kill(os.getpid(), signal.SIGINT)
    qtbot.wait(50)
    interrupts.end()
    assert not pressed
    assert window.isVisible() and signal.getsignal(signal.SIGINT) == signal.SIG_IGN
