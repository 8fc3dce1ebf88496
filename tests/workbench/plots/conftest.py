"""Qt offscreen, generated sessions on the path, and the window's state without a runner."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from workbench.ui.process.thread_pool import Tasks
from workbench.ui.state import AppState


@pytest.fixture(autouse=True)
def application(qapp):
    """Whatever is drawn needs an application, also in a test that names no other fixture."""


@pytest.fixture
def state(qapp):
    state = AppState()
    yield state
    state.close()


@pytest.fixture
def tasks(qapp):
    """Of a chart that no window has."""
    made = Tasks()
    yield made
    made.close()


@pytest.fixture
def show(state):
    """Show a session in the window's state, as one that is recorded live."""

    def shown(session):
        state.recorder.session = session
        state.session = session
        state.sessionChanged.emit()

    return shown
