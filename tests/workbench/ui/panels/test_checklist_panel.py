"""The checklist's panel and action: empty, check by check, done, from a file."""

from __future__ import annotations

import msgspec
import pytest
from fake_session import messages
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QPushButton, QWidget

from sessions.model import Session
from sessions.studies.checklist import CHECKS
from workbench import protocol
from workbench.client.recorder import Recorder


def texts(widget) -> str:
    return "\n".join(label.text() for label in widget.findChildren(QLabel))


def row(panel, name) -> str:
    return texts(panel.findChild(QWidget, f"check-{name}"))


@pytest.fixture
def checked() -> Session:
    """Return a finished session whose last check was not done."""
    recorder = Recorder(Session(title="checked"))
    for message in messages("checklist"):
        recorder.record(message)
    return recorder.session


def test_before_any_check_the_panel_says_what_would_fill_it_and_offers_it(ready):
    panel = ready.checklist
    assert panel.empty.isVisibleTo(panel)
    assert "Each passes, fails or does not apply" in texts(panel)
    assert panel.first.isEnabled() and ready.actions_["validate"].isEnabled()


def test_checks_come_one_by_one_and_say_pass_fail_or_not_applicable(qtbot, ready, hold):
    panel, workspace = ready.checklist, ready.workspace
    hold.touch()
    qtbot.mouseClick(panel.first, Qt.MouseButton.LeftButton)
    reason = "A configuration is being checked."
    assert workspace.checklists.why_not() == reason, "also before the first check has begun"
    qtbot.waitUntil(lambda: panel.headline.text().startswith("Checking: "))
    assert workspace.checklists.why_not() == reason
    qtbot.waitUntil(lambda: not panel.button.isEnabled())
    hold.unlink()
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    qtbot.waitUntil(lambda: panel.headline.text() == "3 pass, 2 fail, 1 not applicable")
    assert panel.headline.property("tone") == "bad"
    assert row(panel, "numerics").split("\n")[1] == "Pass"
    assert row(panel, "syncs").split("\n")[1] == "Fail"
    assert "models/layers/routing.py:88 in forward: count = int(mask.sum())" in row(panel, "syncs")
    assert row(panel, "speedup").split("\n")[1] == "Not applicable"
    qtbot.waitUntil(panel.button.isEnabled)
    assert not workspace.session.saved


def test_what_is_expected_is_what_the_runner_is_asked_for(qtbot, ready, monkeypatch):
    commands = []
    monkeypatch.setattr(
        ready.workspace.measurements, "perform", lambda command, *_: commands.append(command)
    )
    ready.actions_["validate"].trigger()
    ready.checklist.expected.setValue(1.5)
    ready.actions_["validate"].trigger()
    first, second = commands
    assert isinstance(first, protocol.Validate) and first.expect_speedup is None
    assert (second.expect_speedup, second.configuration) == (
        1.5,
        ready.workspace.configuration.edited,
    )


def test_the_expected_speed_up_stands_at_its_name_in_a_wide_panel(qtbot, ready, checked):
    ready.workspace.session.show(checked)
    ready.resize(1600, 900)
    ready.dock_area.bring("checklist")
    pair = ready.checklist.expected.parentWidget()
    qtbot.waitUntil(lambda: ready.checklist.width() > 900 and pair.isVisible())
    qtbot.waitUntil(lambda: pair.width() == pair.sizeHint().width())


def test_a_file_shows_what_was_checked_and_what_was_not_done(ready, checked):
    ready.workspace.session.show(checked)
    panel = ready.checklist
    assert panel.headline.text() == "2 pass, 2 fail, 1 not applicable, 1 not done"
    assert "Not done" in row(panel, "batches")
    assert all(panel.findChild(QWidget, f"check-{name}") is not None for name in CHECKS)


def test_what_keeps_it_from_being_checked_is_said_in_text(qtbot, ready, checked):
    ready.workspace.session.show(checked)
    ready.workspace.run.set_state("dead", "ended")
    qtbot.waitUntil(lambda: not ready.checklist.button.isEnabled())
    assert ready.checklist.reason.text() == "The runner is not ready."


def test_what_is_undecided_can_be_checked_again_with_the_budget_that_should_decide(
    qtbot, ready, checked, monkeypatch
):
    workspace, commands = ready.workspace, []
    monkeypatch.setattr(
        workspace.measurements, "perform", lambda command, *_: commands.append(command)
    )
    configuration = msgspec.structs.replace(workspace.configuration.edited, seed=7)
    request = {
        "configuration": msgspec.json.encode(configuration).decode(),
        "expect_speedup": 1.5,
    }
    row_ = {"check": ["speedup"], "status": ["undecided"], "evidence": ["too few pairs"]}
    for message in (
        protocol.StudyStarted(index=0, kind="checklist", title="tiny", request=request),
        protocol.StudyRows(study=0, table="checks", columns=row_),
        protocol.StudyFacts(study=0, facts={"more_s": 57.2, "seconds": 3.1}),
    ):
        workspace.session.recorder.record(message)
    workspace.session.studiesChanged.emit()
    qtbot.waitUntil(lambda: "1 undecided" in ready.checklist.headline.text())
    row_shown = ready.checklist.findChild(QWidget, "check-speedup")
    assert texts(row_shown).split("\n")[1] == "Undecided"
    qtbot.mouseClick(row_shown.findChild(QPushButton), Qt.MouseButton.LeftButton)
    (command,) = commands
    assert (command.budget_s, command.expect_speedup) == (61.0, 1.5)
    assert command.configuration == configuration


@pytest.mark.parametrize(
    "request_", [{}, {"configuration": "{"}, {"configuration": "{}", "expect_speedup": None}]
)
def test_a_session_that_does_not_name_what_was_checked_offers_no_longer_check(
    qtbot, ready, request_
):
    workspace = ready.workspace
    row_ = {"check": ["speedup"], "status": ["undecided"], "evidence": ["too few pairs"]}
    for message in (
        protocol.StudyStarted(index=0, kind="checklist", title="tiny", request=request_),
        protocol.StudyRows(study=0, table="checks", columns=row_),
        protocol.StudyFacts(study=0, facts={"more_s": 57.2, "seconds": 3.1}),
    ):
        workspace.session.recorder.record(message)
    workspace.session.studiesChanged.emit()
    qtbot.waitUntil(lambda: "1 undecided" in ready.checklist.headline.text())
    shown = ready.checklist.findChild(QWidget, "check-speedup")
    assert "Undecided" in texts(shown) and shown.findChild(QPushButton) is None
    workspace.checklists.check_longer()
    assert workspace.run.state == "idle"
