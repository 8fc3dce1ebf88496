"""A failure that names its cure has a button that makes the choice, and undo takes it back."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton

from workbench import protocol


def button(window, text: str) -> QPushButton:
    (match,) = (
        button for button in window.failures.findChildren(QPushButton) if button.text() == text
    )
    return match


def fail(window, **choices):
    window.workspace.failures.report(
        protocol.Failure(kind="out-of-memory", sentence="It does not fit.", fix="So.", set=choices)
    )


def test_one_click_makes_the_choice_and_undo_takes_it_back(qtbot, ready):
    workspace = ready.workspace
    before = workspace.configuration.edited
    fail(ready, precision="amp_bf16", batch="2")
    made = button(ready, "Precision: AMP BF16, Batch: 2")
    qtbot.mouseClick(made, Qt.MouseButton.LeftButton)
    assert workspace.configuration.edited.toggles["precision"] == "amp_bf16"
    assert workspace.configuration.edited.settings["batch"] == 2
    assert ready.failures.banners == []
    workspace.configuration.undo.undo()
    assert workspace.configuration.edited == before


def test_a_failure_without_a_cure_has_no_such_button(ready):
    fail(ready)
    texts = [button.text() for button in ready.failures.findChildren(QPushButton)]
    assert texts == ["Copy details"]


@pytest.mark.parametrize(("kind", "stays"), [("nan", True), ("slower", True), ("model", False)])
def test_only_what_refused_a_toggle_takes_it_back(qtbot, ready, kind, stays):
    workspace = ready.workspace
    workspace.runs.start()
    qtbot.waitUntil(lambda: workspace.run.state == "running")
    workspace.configuration.set_toggle("triton", "on")
    workspace.router.route(protocol.Failure(kind=kind, sentence="It went wrong."))
    assert (workspace.configuration.edited.toggles["triton"] == "on") is stays


def test_one_click_clears_tritons_cache(qtbot, ready, monkeypatch):
    sent = []
    monkeypatch.setattr(ready.workspace.run, "send", sent.append)
    ready.workspace.failures.report(
        protocol.Failure(kind="compile", sentence="It cannot be used.", fix="So.", clears="triton")
    )
    qtbot.mouseClick(button(ready, "Clear Triton's cache"), Qt.MouseButton.LeftButton)
    assert sent == [protocol.ClearTritonCache()]
    assert ready.failures.banners == []


def test_a_banner_names_a_toggle_as_its_row_does(ready):
    failure = protocol.Failure(kind="mistake", sentence="adamw = fused: no", fix="Set adamw=loop.")
    ready.failures.show_failure(failure)
    (banner,) = ready.failures.banners
    assert banner.sentence.text() == "AdamW: Fused, no"
