"""The models of the window without any widget: who announces what, and in which order."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module

import numpy as np
import pytest
import wire_samples
from fake_catalogue import catalogue
from fake_session import session
from hypothesis import given, settings
from hypothesis import strategies as st
from PySide6.QtCore import QObject, SignalInstance

from workbench import protocol
from workbench.ui import controllers, panels
from workbench.ui.workspace import Workspace

ORDER = [
    "availabilityChanged",
    "catalogueChanged",
    "comparisonsChanged",
    "editedChanged",
    "dataArrived",
    "eventsChanged",
    "segmentsChanged",
    "stateChanged",
    "studiesChanged",
    "textChanged",
]


def signals(model: QObject) -> dict[str, SignalInstance]:
    """Return the signals that a batch of messages may emit, by name."""
    names = [name for name in vars(type(model)) if hasattr(getattr(model, name), "emit")]
    return {name: getattr(model, name) for name in names if name in ORDER}


def receive(workspace: Workspace, messages: list[protocol.AnyMessage]) -> list[str]:
    """Let messages arrive in one batch; return the names of the signals as they were emitted."""
    emitted: list[str] = []
    for model in (workspace.session, workspace.run, workspace.configuration):
        for name, signal in signals(model).items():
            signal.connect(lambda name=name: emitted.append(name))
    workspace._link.drain = lambda: iter(messages)
    workspace._link.arrived.emit()
    return emitted


def batch(kinds: list[str]) -> list[protocol.AnyMessage]:
    """Return messages of these kinds that fit a session."""
    random = np.random.default_rng(0)
    fitting = {
        "catalogue": lambda: [catalogue()],
        "steps": lambda: [wire_samples.telemetry(random, 1.0)],
        "note": lambda: [protocol.Note(kind="note", text="here")],
        "failure": lambda: [protocol.Failure(kind="slower", sentence="It became slower.")],
        "study": lambda: wire_samples.study(random, 1.0),
        "progress": lambda: [protocol.Progress(task="Compile", fraction=0.5, text="1 of 2")],
    }
    return [message for kind in kinds for message in fitting[kind]()]


KINDS = ("catalogue", "steps", "note", "failure", "study", "progress")


@pytest.mark.usefixtures("qapp")
@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(KINDS), unique=True))
def test_a_batch_emits_each_due_signal_once_and_in_one_order(kinds):
    workspace = Workspace()
    emitted = receive(workspace, batch(kinds))
    workspace.close()
    assert emitted == [name for name in ORDER if name in emitted]
    due = {
        "catalogueChanged": {"catalogue"},
        "dataArrived": {"steps"},
        "eventsChanged": {"note", "failure"},
        "stateChanged": {"progress", "study"},
        "studiesChanged": {"study"},
        "editedChanged": {"catalogue", "failure"},
    }
    for name, causes in due.items():
        assert (name in emitted) == bool(causes & set(kinds))


def test_a_note_of_the_window_announces_events_and_that_something_is_unsaved(workspace, qtbot):
    model = workspace.session
    with qtbot.waitSignals([model.eventsChanged, model.savedChanged]):
        model.add_note("here")
    assert not model.saved
    assert [event.text for event in model.shown.events] == ["here"]


def test_a_series_of_experiments_can_be_cancelled_between_two_commands(workspace, monkeypatch):
    ended = []
    monkeypatch.setattr(workspace._link, "cancel", lambda: ended.append(True))
    workspace.run.cancel()
    assert not ended and not workspace.run.cancelled
    workspace.run.in_series = True
    workspace.run.cancel()
    assert ended and workspace.run.cancelled


def test_titles_of_a_compared_session_go_with_it(workspace):
    other = session()
    other.titles = {"toggles.warp": "Warp", "toggles.warp=9": "Nine"}
    workspace.compared.add(other)
    assert workspace.session.titled("warp=9") == "Warp: Nine"
    workspace.compared.remove(other)
    assert workspace.session.titled("warp=9") == "warp=9"


def test_a_session_is_compared_once(workspace):
    other = session()
    workspace.compared.add(other)
    workspace.compared.add(other)
    assert workspace.compared.sessions == [other]
    assert len(workspace.failures.recent) == 1
    assert "already being compared" in workspace.failures.recent[-1].sentence


def test_the_shown_session_is_named_as_such_when_it_would_be_compared_with_itself(workspace):
    workspace.compared.add(workspace.session.shown)
    assert not workspace.compared.sessions
    assert "the session that is shown" in workspace.failures.recent[-1].sentence


def classes() -> list[type]:
    """Return the classes of all panels and controllers."""
    modules = [
        import_module(f"{package.__name__}.{module.name}")
        for package in (panels, controllers)
        for module in pkgutil.iter_modules(package.__path__)
    ]
    return [
        kind
        for module in modules
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if kind.__module__ == module.__name__ and issubclass(kind, QObject)
    ]


def test_panels_and_controllers_take_models_and_never_the_workspace():
    kinds = classes()
    assert len(kinds) > 30
    for kind in kinds:
        parameters = inspect.signature(kind.__init__).parameters.values()
        annotations = [str(parameter.annotation) for parameter in parameters]
        assert "Workspace" not in annotations, kind
