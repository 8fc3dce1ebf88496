"""The application, and the window's state without a runner."""

from __future__ import annotations

import pytest

from workbench.ui.process.thread_pool import Tasks
from workbench.ui.workspace import Workspace


@pytest.fixture(autouse=True)
def application(qapp):
    """Whatever is drawn needs an application, also in a test that names no other fixture."""


@pytest.fixture
def workspace(qapp):
    workspace = Workspace()
    yield workspace
    workspace.close()


@pytest.fixture
def tasks(qapp):
    """Yield the thread pool of a chart that no window has."""
    made = Tasks()
    yield made
    made.close()


@pytest.fixture
def show(workspace):
    """Show a session in the window's workspace, as one that is recorded live."""

    def shown(session):
        workspace.session.recorder.session = session
        workspace.session.shown = session
        workspace.session.sessionChanged.emit()

    return shown
