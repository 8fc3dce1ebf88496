"""Traces of other programs in the window: opened, dropped, never overwritten; steps to try."""

from __future__ import annotations

import json

import profile_samples
import pytest
from PySide6.QtWidgets import QApplication
from test_window_files import drop
from traces import Written

from sessions.model import Session
from workbench.ui.dialogs import session_dialogs
from workbench.ui.panels._next_steps import _Row


@pytest.fixture
def trace(tmp_path):
    """A Kineto trace as another program wrote it."""
    made = Written()
    made.mark("ProfilerStep#1", 0, 900)
    made.op("aten::mm", 30, 100)
    made.kernel("nvjet_gemm", 40, 120.0)
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"traceEvents": made.events}))
    return path


def test_a_trace_opens_in_the_breakdown_panel_and_its_file_stays_as_it_is(
    qtbot, ready, trace, monkeypatch, tmp_path
):
    content = trace.read_bytes()
    assert drop(ready, trace)
    workspace = ready.workspace
    qtbot.waitUntil(lambda: workspace.session.shown.title == "other")
    panel = ready.breakdown
    qtbot.waitUntil(panel.timeline.isVisible)
    assert panel.kernels.item(0, 0).text() == "nvjet_gemm"
    saved = []
    monkeypatch.setattr(session_dialogs, "save_as", lambda window, *_: saved.append(window))
    ready.actions_["save"].trigger()
    workspace.session.rename("another title")
    workspace.session.add_note("slow here")
    workspace.tasks.wait()
    QApplication.processEvents()
    assert not workspace.failures.recent
    assert saved == [ready] and trace.read_bytes() == content


def test_what_cannot_be_read_is_told_in_a_sentence(qtbot, ready, tmp_path):
    path = tmp_path / "broken.json"
    path.write_text("{")
    ready.open_path(path)
    qtbot.waitUntil(lambda: bool(ready.workspace.failures.recent))
    assert "not a Chrome trace" in ready.workspace.failures.recent[-1].sentence


def test_a_suggestion_is_applied_and_its_verdict_measured(qtbot, ready, monkeypatch):
    workspace = ready.workspace
    session = Session(title="profiled", studies=[profile_samples.rich_study(blocks=2)])
    ready.dock_area.bring("breakdown")
    workspace.session.show(session)
    panel = ready.breakdown
    qtbot.waitUntil(lambda: bool(panel.next_steps.findChildren(_Row)))
    row = next(row for row in panel.next_steps.findChildren(_Row) if row.apply.isEnabled())
    (chosen,) = (s for s in panel.next_steps._shown if s.text.lower() == row.text._whole.lower())
    ((toggle, option),) = chosen.toggles.items()
    judged = []
    monkeypatch.setattr(workspace.verdicts, "judge", lambda *arms: judged.append(arms))
    row.verdict.click()
    base, other, _ = judged[0]
    assert other.toggles == {**base.toggles, toggle: option} != base.toggles
    row.apply.click()
    assert workspace.configuration.edited.toggles[toggle] == option
    qtbot.waitUntil(lambda: not row.apply.isEnabled())
    assert row.apply.toolTip() == "This option is already chosen."
