"""Ctrl+C, pressed only while something handles it: a late press would end the tests themselves."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest
from hang_limit import HANG_S

from sessions.model import Segment
from workbench import protocol
from workbench.client.recorder import Recorder


def when_recorded(
    monkeypatch: pytest.MonkeyPatch, is_wanted: Callable[[protocol.AnyMessage], bool]
) -> threading.Event:
    """Return an event that is set once such a message was recorded, in whichever session."""
    event, record = threading.Event(), Recorder.record

    def record_and_set(recorder: Recorder, message: protocol.AnyMessage) -> Segment | None:
        changed = record(recorder, message)
        if is_wanted(message):
            event.set()
        return changed

    monkeypatch.setattr(Recorder, "record", record_and_set)
    return event


def press_ctrl_c(
    presses: int = 1,
    every_s: float = 0.3,
    after: threading.Event | None = None,
    number: signal.Signals = signal.SIGINT,
) -> None:
    """From another thread: wait for a new handler (and for ``after``), then press while it is."""
    before = signal.getsignal(number)

    def press() -> None:
        give_up = time.monotonic() + HANG_S
        while (handler := signal.getsignal(number)) is before:
            if time.monotonic() > give_up:
                return
            time.sleep(0.01)
        if after is not None:
            after.wait(HANG_S)
        for _ in range(presses):
            time.sleep(every_s)
            if signal.getsignal(number) is not handler:
                return
            os.kill(os.getpid(), number)

    threading.Thread(target=press, daemon=True).start()
