"""A verdict offered after toggles changed in a run, or measured by itself; then the run goes on."""

from __future__ import annotations

import msgspec
import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QCheckBox, QLabel, QPushButton

from workbench import protocol
from workbench.ui.controllers import verdict_prompt
from workbench.ui.panels import _verdict_lines as verdict_lines
from workbench.ui.state import config_edit


@pytest.fixture
def bar(qtbot, workspace, panel, monkeypatch):
    """The bar of the toggles' panel while a run is in progress; clicks settle quickly."""
    monkeypatch.setattr(verdict_prompt, "SETTLE_MS", 300)
    workspace.runs.start()
    running(qtbot, workspace)
    return panel.verdict.bar


@pytest.fixture
def commands(workspace, bar, monkeypatch):
    """The commands that the window sends."""
    commands = []
    send = workspace.run.send

    def record(command):
        commands.append(command)
        send(command)

    monkeypatch.setattr(workspace.run, "send", record)
    return commands


def running(qtbot, workspace, segments: int = 1) -> None:
    qtbot.waitUntil(
        lambda: (
            workspace.run.state == "running"
            and len(workspace.session.shown.segments) >= segments
            and not workspace.configuration.pending
            and not workspace.verdicts.busy
            and not workspace.measurements.resumes
        ),
    )


def texts(widget) -> str:
    return "\n".join(label.text() for label in widget.findChildren(QLabel))


def buttons(widget) -> dict[str, QPushButton]:
    return {button.text(): button for button in widget.findChildren(QPushButton)}


def press(qtbot, widget, text: str) -> None:
    """Press a button, which comes once no build is in progress."""
    qtbot.waitUntil(lambda: text in buttons(widget))
    qtbot.mouseClick(buttons(widget)[text], Qt.MouseButton.LeftButton)


def compared(workspace) -> list[tuple[dict[str, str], dict[str, str]]]:
    """Return the toggles of A and of B that differ, of each comparison."""
    session = workspace.session.shown
    differences = []
    for comparison in session.comparisons:
        a, b = (
            session.segments[index].configuration.toggles for index in comparison.facts["segments"]
        )
        names = [name for name in a if a[name] != b[name]]
        differences.append(({name: a[name] for name in names}, {name: b[name] for name in names}))
    return differences


def test_nothing_is_offered_before_a_toggle_was_changed(workspace, bar):
    assert workspace.verdict_prompt.offer is None and not bar.isVisible()


def test_a_click_offers_a_verdict_against_the_configuration_before_it(qtbot, workspace, bar, hold):
    hold.touch()
    workspace.configuration.set_toggle("triton", "on")
    qtbot.waitUntil(bar.isVisible)
    assert "Triton kernels, all: On: did it help?" in texts(bar)
    press(qtbot, bar, "Verdict")
    qtbot.waitUntil(lambda: "Measuring: " in texts(bar))
    hold.unlink()
    running(qtbot, workspace)
    assert compared(workspace) == [({"triton": "off"}, {"triton": "on"})]
    assert workspace.run.running.toggles["triton"] == "on"  # the new one goes on


def test_a_question_about_several_toggles_is_in_the_plural(qtbot, workspace, bar):
    workspace.configuration.set_toggle("triton", "on")
    workspace.configuration.set_toggle("adamw", "foreach")
    running(qtbot, workspace, 2)
    qtbot.waitUntil(lambda: "adamw" in workspace.verdict_prompt.offer.text.lower())
    assert ": did they help?" in texts(bar) and "did it help?" not in texts(bar)


def test_the_prediction_stands_beside_the_offer_and_the_residual_beside_the_verdict(
    qtbot, workspace, bar
):
    workspace.configuration.set_toggle("triton", "on")
    running(qtbot, workspace, 2)
    qtbot.waitUntil(lambda: "predicted by the roofline" in texts(bar).lower())
    assert "0.90 x step time" in texts(bar)
    press(qtbot, bar, "Verdict")
    press(qtbot, bar, "Details")
    qtbot.waitUntil(lambda: "roofline estimate explains" in texts(bar))
    assert "Predicted 0.90, measured 0.80 x step time: 0.10 better" in texts(bar)
    running(qtbot, workspace)


def test_a_verdict_is_one_line_until_its_details_are_wanted(qtbot, workspace, bar):
    workspace.configuration.set_toggle("rope_cache", "shared")
    running(qtbot, workspace, 2)
    press(qtbot, bar, "Verdict")
    qtbot.waitUntil(lambda: "Details" in buttons(bar))
    workspace.run.stop()
    troubles = verdict_lines.troubles(workspace.verdict_prompt.answer, [], workspace.session.titles)
    head = bar._lines.count()  # the lines below the verdict
    assert head == len(troubles) and " pairs in " not in texts(bar)
    press(qtbot, bar, "Details")
    assert bar._lines.count() > head and " pairs in " in texts(bar)
    press(qtbot, bar, "Less")
    assert bar._lines.count() == head


def test_an_offer_waits_while_another_two_are_compared(qtbot, workspace, bar, hold):
    workspace.configuration.set_toggle("triton", "on")
    running(qtbot, workspace, 2)
    hold.touch()
    workspace.verdicts.calibrate()
    qtbot.waitUntil(lambda: workspace.verdicts.measuring)
    assert "did it help?" in texts(bar)
    assert not [button.text() for button in bar.findChildren(QPushButton) if button.isVisible()]
    workspace.verdict_prompt.accept()
    assert workspace.verdict_prompt.offer is not None and workspace.verdict_prompt.judged is None
    hold.unlink()
    running(qtbot, workspace)
    press(qtbot, bar, "Verdict")
    qtbot.waitUntil(lambda: compared(workspace)[1:] == [({"triton": "off"}, {"triton": "on"})])
    running(qtbot, workspace)


def test_the_card_turns_into_the_answer_however_the_verdict_was_asked_for(
    qtbot, workspace, panel, bar
):
    workspace.configuration.set_toggle("triton", "on")
    qtbot.waitUntil(bar.isVisible)
    running(qtbot, workspace, 2)
    workspace.verdicts.against_before()
    running(qtbot, workspace)
    qtbot.waitUntil(lambda: "Triton kernels, all: On: 1.2" in texts(bar))
    assert "did it help?" not in texts(bar) and "x faster (95 % interval " in texts(bar)
    result = panel.rows["triton"].result
    assert result._whole.startswith("1.2") and "x faster, " in result._whole
    assert panel.rows["adamw"].result._whole == ""


def test_the_card_goes_when_the_workload_changes(qtbot, workspace, bar):
    workspace.configuration.set_toggle("triton", "on")
    qtbot.waitUntil(bar.isVisible)
    running(qtbot, workspace, 2)
    workspace.configuration.edit(
        config_edit.with_workload(
            workspace.configuration.catalogue, workspace.configuration.edited, "forward"
        )
    )
    assert workspace.verdict_prompt.offer is None and not bar.isVisible()


def test_the_answer_goes_when_another_run_begins(qtbot, workspace, bar):
    workspace.configuration.set_toggle("triton", "on")
    qtbot.waitUntil(bar.isVisible)
    press(qtbot, bar, "Verdict")
    running(qtbot, workspace)
    qtbot.waitUntil(lambda: "x faster" in texts(bar))
    workspace.run.stop()
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    workspace.runs.start()
    qtbot.waitUntil(lambda: not bar.isVisible())


def test_ticking_auto_verdict_measures_nothing_that_was_changed_before(qtbot, workspace, bar):
    workspace.configuration.set_toggle("triton", "on")
    running(qtbot, workspace, 2)
    workspace.verdict_prompt.set_automatic(True)
    qtbot.wait(700)
    assert not workspace.verdicts.busy and not workspace.session.shown.comparisons
    workspace.configuration.set_toggle("adamw", "fused")
    qtbot.waitUntil(lambda: bool(workspace.session.shown.comparisons))
    running(qtbot, workspace)
    assert compared(workspace) == [({"adamw": "loop"}, {"adamw": "fused"})]


def test_an_offer_can_be_dismissed_and_the_next_click_makes_another(qtbot, workspace, bar):
    workspace.configuration.set_toggle("triton", "on")
    qtbot.waitUntil(bar.isVisible)
    bar.close_button.click()
    assert not bar.isVisible()
    qtbot.wait(350)
    workspace.configuration.set_toggle("adamw", "fused")
    qtbot.waitUntil(bar.isVisible)
    offer = workspace.verdict_prompt.offer
    assert (offer.base.toggles["triton"], offer.base.toggles["adamw"]) == ("on", "loop")


def test_a_new_session_is_not_offered_what_the_one_before_changed(qtbot, workspace, bar):
    workspace.configuration.set_toggle("adamw", "fused")
    qtbot.waitUntil(lambda: workspace.verdict_prompt.offer is not None and bar.isVisible())
    workspace.run.begin_session()
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    assert workspace.verdicts.why_not_before().startswith("No other configuration has run yet")
    assert workspace.verdict_prompt.offer is None and not bar.isVisible()


def test_an_undone_click_offers_nothing(qtbot, workspace, bar):
    workspace.configuration.set_toggle("triton", "on")
    qtbot.waitUntil(bar.isVisible)
    workspace.configuration.undo.undo()
    qtbot.waitUntil(lambda: not bar.isVisible())


def test_another_model_is_no_change_of_toggles(qtbot, workspace, bar):
    workspace.configuration.set_toggle("triton", "on")
    qtbot.waitUntil(bar.isVisible)
    workspace.run.stop()
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    workspace.configuration.edit(
        config_edit.with_preset(
            workspace.configuration.catalogue, workspace.configuration.edited, "tiny"
        )
    )
    workspace.configuration.set_toggle("triton", "off")
    workspace.runs.start()
    running(qtbot, workspace, 3)
    workspace.configuration.set_toggle("adamw", "fused")
    qtbot.waitUntil(
        lambda: workspace.verdict_prompt.offer is not None and not workspace.configuration.pending
    )
    offer = workspace.verdict_prompt.offer
    assert (offer.base.preset, offer.other.preset) == ("tiny", "tiny")
    assert offer.base.toggles["triton"] == "off"


def test_segments_that_no_click_began_are_no_change(qtbot, workspace, bar):
    """Start an arm as an attribution does, which builds its arms in turn."""
    workspace.verdict_prompt.set_automatic(True)
    toggles = {**workspace.run.running.toggles, "triton": "on"}
    arm = msgspec.structs.replace(workspace.run.running, toggles=toggles)
    workspace.run.send(protocol.Start(configuration=arm))
    qtbot.waitUntil(lambda: len(workspace.session.shown.segments) == 2)
    qtbot.wait(400)
    assert (
        workspace.run.running == arm
        and workspace.verdict_prompt.offer is None
        and not bar.isVisible()
    )


def test_auto_verdict_measures_by_itself_and_the_new_configuration_goes_on(
    qtbot, workspace, bar, commands
):
    workspace.verdict_prompt.set_automatic(True)
    workspace.configuration.set_toggle("triton", "on")
    qtbot.waitUntil(lambda: bool(workspace.session.shown.comparisons))
    running(qtbot, workspace)
    assert compared(workspace) == [({"triton": "off"}, {"triton": "on"})]
    kinds = [
        type(command).__name__
        for command in commands
        if not isinstance(command, protocol.Check | protocol.Apply)
    ]
    assert kinds == ["Compare", "Start"]
    assert commands[-1].configuration == workspace.run.running
    assert workspace.run.running.toggles["triton"] == "on"
    qtbot.wait(700)
    assert len(workspace.session.shown.comparisons) == 1  # the run that goes on is no new change


def test_fast_but_wrong_is_red_in_auto_verdict_too(qtbot, workspace, bar):
    workspace.verdict_prompt.set_automatic(True)
    workspace.configuration.set_toggle("compile", "reduce-overhead")
    qtbot.waitUntil(lambda: bool(workspace.session.shown.comparisons))
    running(qtbot, workspace)
    qtbot.waitUntil(lambda: "WRONG results of B" in texts(bar))
    shown = texts(bar)
    assert "torch.compile: reduce-overhead: 1.2" in shown and "WRONG results of B" in shown
    assert bar.property("tone") == "bad"
    assert "x faster (95 % interval " in shown
    assert "B: wrong numbers: relative error 0.022, at most 0.0021 expected" in shown
    assert "B: torch.compile: reduce-overhead, no effect: no graph was captured" in shown
    tones = {label.text(): label.property("tone") for label in bar.findChildren(QLabel)}
    amber = next(text for text in tones if "no effect" in text)
    assert tones[amber] == "warning"


def test_quick_clicks_make_one_comparison(qtbot, workspace, bar, monkeypatch):
    workspace.verdict_prompt.set_automatic(True)
    settle_ms = verdict_prompt.SETTLE_MS
    monkeypatch.setattr(
        verdict_prompt, "SETTLE_MS", 3_600_000
    )  # quick is what comes before it is over
    for index, (name, option) in enumerate(
        [("triton", "on"), ("adamw", "fused"), ("precision", "bf16")]
    ):
        workspace.configuration.set_toggle(name, option)
        if index < 2:  # each has run before the next click
            running(qtbot, workspace, index + 2)
    monkeypatch.setattr(verdict_prompt, "SETTLE_MS", settle_ms)
    qtbot.waitUntil(lambda: bool(workspace.session.shown.comparisons))
    running(qtbot, workspace)
    qtbot.wait(700)
    assert compared(workspace) == [
        (
            {"precision": "fp32", "triton": "off", "adamw": "loop"},
            {"precision": "bf16", "triton": "on", "adamw": "fused"},
        )
    ]


def test_a_quick_click_whose_segment_is_slow_to_come_belongs_to_the_same_change(
    qtbot, workspace, bar, monkeypatch
):
    workspace.verdict_prompt.set_automatic(True)
    monkeypatch.setattr(verdict_prompt, "SETTLE_MS", 3_600_000)
    workspace.configuration.set_toggle("triton", "on")
    running(qtbot, workspace, 2)
    monkeypatch.setattr(
        verdict_prompt, "SETTLE_MS", 1
    )  # over before the runner has heard of the click
    workspace.configuration.set_toggle("adamw", "fused")
    qtbot.waitUntil(lambda: bool(workspace.session.shown.comparisons))
    running(qtbot, workspace)
    qtbot.wait(300)
    assert compared(workspace) == [
        ({"triton": "off", "adamw": "loop"}, {"triton": "on", "adamw": "fused"})
    ]


@pytest.mark.parametrize("drained", ["with what follows it", "alone"])
def test_a_click_during_a_comparison_waits_and_is_judged_next(
    qtbot, workspace, panel, bar, hold, drained
):
    hold.touch()
    if drained == "alone":  # as on a busy machine: the end, then what it touched, then idle

        def touch(message) -> None:
            if isinstance(message, protocol.Finished):
                workspace.run.stateChanged.emit()

        workspace.run.received.connect(touch)
    workspace.verdict_prompt.set_automatic(True)
    workspace.configuration.set_toggle("triton", "on")
    qtbot.waitUntil(lambda: workspace.verdicts.measuring)
    workspace.configuration.set_toggle("adamw", "fused")
    assert workspace.configuration.pending == {"adamw": "fused"}
    pending = "\n".join(label.text() for label in panel.findChildren(QLabel))
    assert "1 change after the verdict" in pending
    hold.unlink()
    qtbot.waitUntil(lambda: len(workspace.session.shown.comparisons) == 2)
    running(qtbot, workspace)
    assert not workspace.failures.recent
    assert compared(workspace) == [
        ({"triton": "off"}, {"triton": "on"}),
        ({"adamw": "loop"}, {"adamw": "fused"}),
    ]
    assert workspace.run.running.toggles["adamw"] == "fused"


def test_what_was_compared_is_not_compared_again_by_itself(qtbot, workspace, bar):
    workspace.verdict_prompt.set_automatic(True)
    workspace.configuration.set_toggle("triton", "on")
    qtbot.waitUntil(lambda: len(workspace.session.shown.comparisons) == 1)
    running(qtbot, workspace)
    assert workspace.session.shown.comparisons[0].verdict == "FASTER"
    qtbot.wait(350)
    workspace.configuration.set_toggle("triton", "off")
    qtbot.waitUntil(lambda: "already compared" in texts(bar))
    qtbot.wait(700)
    assert len(workspace.session.shown.comparisons) == 1
    press(qtbot, bar, "Compare again")
    qtbot.waitUntil(lambda: len(workspace.session.shown.comparisons) == 2)


def test_stop_ends_the_comparison_and_the_run(qtbot, workspace, bar, hold):
    hold.touch()
    workspace.verdict_prompt.set_automatic(True)
    workspace.configuration.set_toggle("triton", "on")
    qtbot.waitUntil(lambda: workspace.verdicts.measuring)
    workspace.run.stop()
    qtbot.waitUntil(lambda: workspace.run.state == "idle" and not workspace.verdicts.busy)
    qtbot.wait(400)
    assert workspace.run.state == "idle" and len(workspace.session.shown.comparisons) == 1


def test_enough_ends_the_comparison_and_the_run_goes_on(qtbot, workspace, bar, hold):
    hold.touch()
    workspace.configuration.set_toggle("triton", "on")
    qtbot.waitUntil(bar.isVisible)
    press(qtbot, bar, "Verdict")
    qtbot.waitUntil(
        lambda: (
            workspace.verdicts.measuring and len(workspace.session.shown.comparisons[0].order) > 4
        ),
    )
    press(qtbot, bar, "Enough")
    running(qtbot, workspace)
    assert 4 < len(workspace.session.shown.comparisons[0].order) < 26
    assert workspace.run.running.toggles["triton"] == "on"


def test_undecided_can_be_measured_on_from_the_bar_and_the_run_goes_on(qtbot, workspace, bar, hold):
    hold.touch()
    workspace.configuration.set_toggle("triton", "on")
    qtbot.waitUntil(bar.isVisible)
    press(qtbot, bar, "Verdict")
    qtbot.waitUntil(
        lambda: (
            workspace.verdicts.measuring and workspace.verdicts.newest.facts.get("pairs", 0) > 1
        ),
    )
    press(qtbot, bar, "Enough")
    running(qtbot, workspace)
    hold.unlink()
    assert workspace.verdicts.newest.verdict == "UNDECIDED"
    more = workspace.verdicts.more_text()
    qtbot.waitUntil(lambda: more in [button.text() for button in bar.findChildren(QPushButton)])
    pairs = workspace.verdicts.newest.facts["pairs"]
    press(qtbot, bar, more)
    running(qtbot, workspace)
    assert len(workspace.session.shown.comparisons) == 1
    assert workspace.session.shown.comparisons[0].facts["pairs"] >= pairs + 12
    assert workspace.run.running.toggles["triton"] == "on"


def test_measuring_on_is_not_ended_by_an_interval_that_is_narrow_already(
    qtbot, workspace, bar, commands
):
    """Else an interval of 0.4 % over the edge of 1 % could never be decided."""
    workspace.configuration.set_toggle("triton", "on")
    running(qtbot, workspace, 2)
    workspace.verdicts.against_before()
    running(qtbot, workspace)
    workspace.verdicts.measure_more()
    assert isinstance(commands[-1], protocol.Compare)
    assert commands[-1].half_width == 0 and commands[-1].before


def test_a_comparison_that_fails_leaves_the_run_going(qtbot, workspace, bar):
    before = workspace.run.running
    workspace.configuration.set_toggle("triton", "on")
    running(qtbot, workspace, 2)
    workspace.verdicts.judge(before, msgspec.structs.replace(workspace.run.running, data="fails"))
    running(qtbot, workspace, 3)
    assert not workspace.verdicts.busy and workspace.failures.recent
    assert workspace.run.running.toggles["triton"] == "on"


def test_a_runner_that_dies_in_a_comparison_leaves_nothing_waiting(qtbot, workspace, bar, hold):
    hold.touch()
    workspace.configuration.set_toggle("triton", "on")
    qtbot.waitUntil(bar.isVisible)
    press(qtbot, bar, "Verdict")
    qtbot.waitUntil(lambda: workspace.verdicts.measuring)
    workspace.run.start_runner()
    assert not workspace.verdicts.busy
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    assert workspace.verdicts.why_not_before() == ""


def test_the_mode_is_remembered_and_both_switches_show_it(qtbot, ready, settings):
    box = ready.toggles.findChild(QCheckBox)
    assert not box.isChecked() and not ready.actions_["auto-verdict"].isChecked()
    qtbot.mouseClick(box, Qt.MouseButton.LeftButton, pos=box.rect().center() / 4)
    assert ready.workspace.verdict_prompt.automatic
    assert ready.actions_["auto-verdict"].isChecked() and settings.auto_verdict
    ready.actions_["auto-verdict"].trigger()
    assert not box.isChecked() and not settings.auto_verdict
    settings.auto_verdict = True
    ready.workspace.verdict_prompt.keep_in(settings)
    assert ready.workspace.verdict_prompt.automatic
