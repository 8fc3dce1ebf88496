"""Toggles as a person sees them: blocked with a reason and a fix, pending, effective, undone."""

from __future__ import annotations

import msgspec
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QComboBox, QLabel, QPushButton, QToolButton

from sessions.model import Evidence, Segment
from workbench.ui.panels._toggle_row import RowState


def texts(row, name):
    return [label.text() for label in row.findChildren(QLabel, name)]


def button(row, text):
    return next(button for button in row.findChildren(QToolButton) if button.text() == text)


def start(qtbot, window):
    window.actions_["run"].trigger()
    qtbot.waitUntil(lambda: window.workspace.run.state == "running")


def test_a_blocked_option_is_disabled_and_says_why_behind_its_lock(qtbot, ready):
    row = ready.toggles.rows["attention"]
    combo = row.findChild(QComboBox)
    disabled = [
        combo.itemText(index)
        for index in range(combo.count())
        if not combo.model().item(index).isEnabled()
    ]
    assert disabled == ["SDPA flash", "SDPA cuDNN", "FlashAttention 3", "xFormers"]
    assert "xformers is not installed" in row.lock.toolTip()
    qtbot.mouseClick(row.lock, Qt.MouseButton.LeftButton)
    shown = [label for label in row.findChildren(QLabel, "blocked") if label.isVisible()]
    assert any("needs FP16 or BF16 inputs" in label.text() for label in shown)
    assert any("xformers is not installed" in label.text() for label in shown)


def test_the_fix_button_makes_the_choices_that_unblock(qtbot, ready):
    row = ready.toggles.rows["attention"]
    qtbot.mouseClick(row.lock, Qt.MouseButton.LeftButton)
    fix = row.findChild(QPushButton, "fix")
    qtbot.mouseClick(fix, Qt.MouseButton.LeftButton)
    assert ready.workspace.configuration.edited.toggles["precision"] == "amp_bf16"
    qtbot.waitUntil(lambda: "flash3" not in ready.workspace.configuration.blocked("attention"))
    assert all("needs FP16" not in text for text in texts(row, "blocked"))


def test_a_fix_may_change_the_workload(qtbot, ready):
    workspace = ready.workspace
    workspace.configuration.choose({"workload": "forward"}, "Forward")
    qtbot.waitUntil(lambda: bool(workspace.configuration.blocked("checkpointing")))
    row = ready.toggles.rows["checkpointing"]
    qtbot.mouseClick(row.lock, Qt.MouseButton.LeftButton)
    fix = row.findChild(QPushButton, "fix")
    qtbot.mouseClick(fix, Qt.MouseButton.LeftButton)
    assert workspace.configuration.edited.workload == "train"


def test_undo_and_redo_return_to_earlier_toggles(qtbot, ready):
    workspace = ready.workspace
    workspace.configuration.set_toggle("triton", "on")
    workspace.configuration.choose({"precision": "bf16", "adamw": "fused"}, "Two at once")
    assert ready.actions_["undo"].text() == "Undo Two at once"
    ready.actions_["undo"].trigger()
    toggles = workspace.configuration.edited.toggles
    assert (toggles["precision"], toggles["adamw"], toggles["triton"]) == ("fp32", "loop", "on")
    ready.actions_["undo"].trigger()
    assert workspace.configuration.edited.toggles["triton"] == "off"
    assert not ready.actions_["undo"].isEnabled()
    ready.actions_["redo"].trigger()
    assert workspace.configuration.edited.toggles["triton"] == "on"
    assert ready.toggles.rows["triton"].picker.value == "on"


def test_undo_during_a_run_is_applied_to_the_run(qtbot, ready):
    start(qtbot, ready)
    workspace = ready.workspace
    workspace.configuration.set_toggle("triton", "on")
    qtbot.waitUntil(lambda: len(workspace.session.shown.segments) == 2)
    ready.actions_["undo"].trigger()
    qtbot.waitUntil(lambda: len(workspace.session.shown.segments) == 3)
    assert workspace.session.shown.segments[2].configuration.toggles["triton"] == "off"


def test_an_option_without_effect_says_so_in_words(qtbot, ready):
    ready.workspace.configuration.set_toggle("compile", "reduce-overhead")
    ready.workspace.configuration.set_toggle("triton", "on")
    start(qtbot, ready)
    rows = ready.toggles.rows
    for name in ("compile", "triton"):
        rows[name].toggle_details()
    qtbot.waitUntil(lambda: bool(texts(rows["compile"], "evidence")))
    label = rows["compile"].findChild(QLabel, "evidence")
    assert label.text().startswith("No effect: no graph was captured")
    assert label.property("tone") == "warning"
    assert texts(rows["triton"], "evidence")[0].startswith("Effective")


def test_after_a_study_a_toggle_shows_the_evidence_of_its_own_option(qtbot, ready):
    ready.workspace.configuration.set_toggle("triton", "on")
    start(qtbot, ready)
    row = ready.toggles.rows["triton"]
    qtbot.waitUntil(lambda: not row.mark.isHidden())
    ready.workspace.run.stop()
    qtbot.waitUntil(lambda: ready.workspace.run.state == "idle")
    session = ready.workspace.session
    last = session.shown.segments[-1]
    plain = msgspec.structs.replace(
        last.configuration, toggles={**last.configuration.toggles, "triton": "off"}
    )
    studied = Segment(index=last.index + 1, configuration=plain, label="arm")
    studied.evidence = [Evidence("adamw", "loop", "effective", "seen")]
    session.shown.segments.append(studied)
    session.segmentsChanged.emit()
    assert not row.mark.isHidden() and "Effective" in row.mark.toolTip()


def test_an_option_that_is_the_default_by_what_it_means_says_so_and_warns_of_nothing(ready):
    row, theme = ready.toggles.rows["compile"], ready.workspace.theme.current
    evidence = Evidence("compile", "default", "as default", "every step had the same sizes")
    row.show_state(RowState("default", evidence=evidence), theme)
    row.toggle_details()
    label = row.findChild(QLabel, "evidence")
    assert label.text() == "As default: every step had the same sizes"
    assert label.property("tone") != "warning"


def test_a_toggle_of_a_run_is_pending_until_its_segment_begins(qtbot, ready):
    start(qtbot, ready)
    ready.toggles.rows["triton"].toggle_details()
    button_on = button(ready.toggles.rows["triton"], "On")
    qtbot.mouseClick(button_on, Qt.MouseButton.LeftButton)
    assert ready.workspace.configuration.pending == {"triton": "on"}
    labels = ready.toggles.rows["triton"].findChildren(QLabel)
    assert any(label.text() == "On is pending" for label in labels)
    qtbot.waitUntil(lambda: not ready.workspace.configuration.pending)
    assert not any("pending" in text for text in texts(ready.toggles.rows["triton"], ""))


def test_the_wheel_over_a_list_changes_nothing(qtbot, ready):
    from PySide6.QtCore import QPoint, QPointF
    from PySide6.QtGui import QWheelEvent

    combo = ready.toggles.rows["precision"].findChild(QComboBox)
    combo.setFocus()
    event = QWheelEvent(
        QPointF(5, 5),
        QPointF(5, 5),
        QPoint(0, -120),
        QPoint(0, -120),
        Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier,
        Qt.ScrollPhase.NoScrollPhase,
        False,
    )
    combo.wheelEvent(event)
    assert not event.isAccepted()
    assert ready.workspace.configuration.edited.toggles["precision"] == "fp32"


def test_a_toggle_that_the_run_refuses_is_taken_back_and_explained(qtbot, ready):
    start(qtbot, ready)
    undo = ready.workspace.configuration.undo
    ready.workspace.configuration.set_toggle("rope_cache", "shared")
    qtbot.waitUntil(lambda: not ready.workspace.configuration.pending)
    ready.workspace.configuration.set_toggle("cuda_graphs", "on")
    qtbot.waitUntil(lambda: bool(ready.workspace.failures.recent))
    assert "only fused AdamW" in ready.failures.banners[0].sentence.text()
    assert ready.workspace.configuration.edited.toggles["cuda_graphs"] == "off"
    assert ready.toggles.rows["cuda_graphs"].picker.value == "off"
    assert not ready.workspace.configuration.pending
    assert undo.count() == 1 and "RoPE" in undo.undoText(), "it has nothing to undo"
    ready.workspace.configuration.set_toggle("triton", "on")
    qtbot.waitUntil(lambda: len(ready.workspace.session.shown.segments) == 3)
    qtbot.waitUntil(lambda: not ready.workspace.configuration.pending)
    assert ready.workspace.configuration.edited.toggles["triton"] == "on"


def test_an_option_that_failed_is_red_with_its_reason_until_the_next_change(qtbot, ready):
    start(qtbot, ready)
    workspace, row = ready.workspace, ready.toggles.rows["compile"]
    session, before = workspace.session.shown, workspace.session.shown.segments[-1]
    toggles = {**before.configuration.toggles, "compile": "default"}
    requested = msgspec.structs.replace(before.configuration, toggles=toggles)
    failed = Evidence("compile", "default", "failed", "torch.compile failed: no graph")
    session.segments.append(Segment(1, requested, "tried", evidence=[failed]))
    session.segments.append(Segment(2, before.configuration, "gone back to"))
    workspace.session.segmentsChanged.emit()
    row.toggle_details()
    label = row.findChild(QLabel, "evidence")
    assert label.text() == "Default: Failed: torch.compile failed: no graph"
    assert label.property("tone") == "bad"
    other = {**before.configuration.toggles, "rope_cache": "shared"}
    changed = msgspec.structs.replace(before.configuration, toggles=other)
    session.segments.append(Segment(3, changed, "changed"))
    workspace.session.segmentsChanged.emit()
    assert not texts(row, "evidence")
