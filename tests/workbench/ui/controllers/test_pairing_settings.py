"""The window's settings of background pairing and of builds, and what it shows of both."""

from __future__ import annotations

import msgspec

from sessions.verdicts.background import BACKGROUND
from workbench import protocol
from workbench.ui.settings import Settings


def submenu(window, title):
    """The actions of a submenu of Run, as it opens."""
    for action in window.actions_.menus["Run"].actions():
        if action.menu() is not None and action.text() == title:
            action.menu().aboutToShow.emit()
            return action.menu().actions()
    raise AssertionError(title)


def checked(actions):
    return [action.text() for action in actions if action.isChecked()]


def test_a_person_chooses_the_share_and_it_is_remembered(ready, settings):
    actions = submenu(ready, "Background pairing")
    assert checked(actions) == ["5 % of the time"]
    next(action for action in actions if action.text() == "Off").trigger()
    assert ready.workspace.runs.pairing_share == 0 == settings.pairing_share
    assert checked(submenu(ready, "Background pairing")) == ["Off"]
    start = ready.workspace.runs.start_command(ready.workspace.configuration.edited)
    assert start.pairing_share == 0.0


def test_a_person_chooses_how_often_a_verdict_builds(ready, settings):
    actions = submenu(ready, "Builds of a verdict")
    assert checked(actions) == ["Automatic"]
    next(action for action in actions if action.text() == "3").trigger()
    assert settings.build_count == 3 == ready.workspace.verdicts.build_count
    assert checked(submenu(ready, "Builds of a verdict")) == ["3"]


def test_settings_that_cannot_be_read_are_as_if_nobody_had_chosen(tmp_path):
    settings = Settings(tmp_path / "settings.ini")
    for damaged in ("much", "-1", "7"):
        settings._store.setValue("pairing_share", damaged)
        assert settings.pairing_share == protocol.PAIRING_SHARE
    for damaged in ("often", "-1", "9" * 30, "9" * 5000, "nan"):
        settings._store.setValue("build_count", damaged)
        assert settings.build_count == 0
    for damaged in ("large", "0.5", "70", "inf", "nan"):
        settings._store.setValue("font_points", damaged)
        assert settings.font_points == 0


def test_a_background_comparison_neither_blocks_nor_displaces_a_verdict(qtbot, ready):
    workspace, verdicts = ready.workspace, ready.workspace.verdicts
    workspace.runs.start()
    qtbot.waitUntil(lambda: workspace.run.state == "running")
    qtbot.waitUntil(lambda: bool(workspace.session.shown.segments))
    workspace.session.recorder.record(
        protocol.ComparisonStarted(
            index=77, arms=["A", "B"], segments=[0, 0], request={BACKGROUND: True}
        )
    )
    assert not verdicts.measuring and not verdicts.why_not()
    assert verdicts.newest is None and len(verdicts.all) == 1
    first = workspace.session.shown.comparisons[0]
    requested = msgspec.structs.replace(first, facts={**first.facts, BACKGROUND: False})
    workspace.session.shown.comparisons.insert(0, requested)
    assert verdicts.newest is not None and not verdicts.newest.facts[BACKGROUND]


def test_another_baseline_is_told_to_the_runner_once(ready, monkeypatch):
    sent, workspace = [], ready.workspace
    monkeypatch.setattr(workspace.run, "send", sent.append)
    monkeypatch.setattr(type(workspace.run), "active", True)
    recorder = workspace.session.recorder
    for index in range(2):
        recorder.record(
            protocol.SegmentStarted(
                index=index, configuration=workspace.configuration.edited, label=""
            )
        )
    workspace.session.set_baseline(1)
    workspace.session.set_baseline(1)
    baselines = [command for command in sent if isinstance(command, protocol.Baseline)]
    assert [command.configuration for command in baselines] == [workspace.configuration.edited]
