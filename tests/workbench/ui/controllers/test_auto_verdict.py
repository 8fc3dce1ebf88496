"""A verdict offered after toggles changed in a run, or measured by itself; then the run goes on."""

from __future__ import annotations

import msgspec
import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QCheckBox, QLabel, QPushButton

from workbench import protocol
from workbench.ui.controllers import config_edit, verdict_prompt


@pytest.fixture
def bar(qtbot, state, panel, monkeypatch):
    """The bar of the toggles' panel while a run is in progress; clicks settle quickly."""
    monkeypatch.setattr(verdict_prompt, "SETTLE_MS", 300)
    state.start()
    running(qtbot, state)
    return panel.verdict.bar


@pytest.fixture
def asked(state, bar, monkeypatch):
    """The commands that the window sends."""
    told = []
    send = state.send

    def hear(command):
        told.append(command)
        send(command)

    monkeypatch.setattr(state, "send", hear)
    return told


def running(qtbot, state, segments: int = 1) -> None:
    qtbot.waitUntil(
        lambda: (
            state.runner_state == "running"
            and len(state.session.segments) >= segments
            and not state.pending
            and not state.verdicts.busy
            and not state.verdicts.resumes
        ),
    )


def texts(widget) -> str:
    return "\n".join(label.text() for label in widget.findChildren(QLabel))


def button(widget, text: str) -> QPushButton:
    return next(one for one in widget.findChildren(QPushButton) if one.text() == text)


def press(qtbot, widget, text: str) -> None:
    qtbot.mouseClick(button(widget, text), Qt.MouseButton.LeftButton)


def compared(state) -> list[tuple[dict[str, str], dict[str, str]]]:
    """What differs between the arms of each comparison: the toggles of A, and of B."""
    session = state.session
    found = []
    for one in session.comparisons:
        a, b = (session.segments[place].configuration.toggles for place in one.facts["segments"])
        names = [name for name in a if a[name] != b[name]]
        found.append(({name: a[name] for name in names}, {name: b[name] for name in names}))
    return found


def test_nothing_is_offered_before_a_toggle_was_changed(state, bar):
    assert state.offers.offer is None and not bar.isVisible()


def test_a_click_offers_a_verdict_against_the_configuration_before_it(qtbot, state, bar, hold):
    hold.touch()
    state.set_toggle("triton", "on")
    qtbot.waitUntil(bar.isVisible)
    assert "Triton kernels, all: On: did it help?" in texts(bar)
    press(qtbot, bar, "Verdict")
    qtbot.waitUntil(lambda: "Measuring: " in texts(bar))
    hold.unlink()
    running(qtbot, state)
    assert compared(state) == [({"triton": "off"}, {"triton": "on"})]
    assert state.running.toggles["triton"] == "on"  # the new one goes on


def test_the_prediction_stands_beside_the_offer_and_the_residual_beside_the_verdict(
    qtbot, state, bar
):
    state.set_toggle("triton", "on")
    running(qtbot, state, 2)
    qtbot.waitUntil(lambda: "predicted by the roofline" in texts(bar).lower())
    assert "0.90 x step time" in texts(bar)
    press(qtbot, bar, "Verdict")
    qtbot.waitUntil(lambda: "roofline estimate explains" in texts(bar))
    assert "Predicted 0.90, measured 0.80 x step time: 0.10 better" in texts(bar)
    running(qtbot, state)


def test_an_offer_waits_while_another_two_are_compared(qtbot, state, bar, hold):
    state.set_toggle("triton", "on")
    running(qtbot, state, 2)
    hold.touch()
    state.verdicts.calibrate()
    qtbot.waitUntil(lambda: state.verdicts.measuring)
    assert "did it help?" in texts(bar)
    assert not [one.text() for one in bar.findChildren(QPushButton) if one.isVisible()]
    state.offers.accept()
    assert state.offers.offer is not None and state.offers.judged is None
    hold.unlink()
    running(qtbot, state)
    press(qtbot, bar, "Verdict")
    qtbot.waitUntil(lambda: compared(state)[1:] == [({"triton": "off"}, {"triton": "on"})])
    running(qtbot, state)


def test_the_card_turns_into_the_answer_however_the_verdict_was_asked_for(qtbot, state, panel, bar):
    state.set_toggle("triton", "on")
    qtbot.waitUntil(bar.isVisible)
    running(qtbot, state, 2)
    state.verdicts.against_before()
    running(qtbot, state)
    qtbot.waitUntil(lambda: "Triton kernels, all: On: 1.2" in texts(bar))
    assert "did it help?" not in texts(bar) and "x faster (95 % CI " in texts(bar)
    result = panel.rows["triton"].result
    assert result._whole.startswith("1.2") and "x faster, " in result._whole
    assert panel.rows["adamw"].result._whole == ""


def test_the_card_goes_when_the_workload_changes(qtbot, state, bar):
    state.set_toggle("triton", "on")
    qtbot.waitUntil(bar.isVisible)
    running(qtbot, state, 2)
    state.edit(config_edit.with_workload(state.catalogue, state.configuration, "forward"))
    assert state.offers.offer is None and not bar.isVisible()


def test_the_answer_goes_when_another_run_begins(qtbot, state, bar):
    state.set_toggle("triton", "on")
    qtbot.waitUntil(bar.isVisible)
    press(qtbot, bar, "Verdict")
    running(qtbot, state)
    qtbot.waitUntil(lambda: "x faster" in texts(bar))
    state.stop()
    qtbot.waitUntil(lambda: state.runner_state == "idle")
    state.start()
    qtbot.waitUntil(lambda: not bar.isVisible())


def test_ticking_auto_verdict_measures_nothing_that_was_changed_before(qtbot, state, bar):
    state.set_toggle("triton", "on")
    running(qtbot, state, 2)
    state.offers.set_automatic(True)
    qtbot.wait(700)
    assert not state.verdicts.busy and not state.session.comparisons
    state.set_toggle("adamw", "fused")
    qtbot.waitUntil(lambda: bool(state.session.comparisons))
    running(qtbot, state)
    assert compared(state) == [({"adamw": "loop"}, {"adamw": "fused"})]


def test_an_offer_can_be_dismissed_and_the_next_click_makes_another(qtbot, state, bar):
    state.set_toggle("triton", "on")
    qtbot.waitUntil(bar.isVisible)
    bar.close_button.click()
    assert not bar.isVisible()
    qtbot.wait(350)
    state.set_toggle("adamw", "fused")
    qtbot.waitUntil(bar.isVisible)
    offer = state.offers.offer
    assert (offer.base.toggles["triton"], offer.base.toggles["adamw"]) == ("on", "loop")


def test_a_new_session_is_not_offered_what_the_one_before_changed(qtbot, state, bar):
    state.set_toggle("adamw", "fused")
    qtbot.waitUntil(lambda: state.offers.offer is not None and bar.isVisible())
    state.new_session()
    qtbot.waitUntil(lambda: state.runner_state == "idle")
    assert state.verdicts.why_not_before().startswith("No other configuration has run yet")
    assert state.offers.offer is None and not bar.isVisible()


def test_an_undone_click_offers_nothing(qtbot, state, bar):
    state.set_toggle("triton", "on")
    qtbot.waitUntil(bar.isVisible)
    state.undo.undo()
    qtbot.waitUntil(lambda: not bar.isVisible())


def test_another_model_is_no_change_of_toggles(qtbot, state, bar):
    state.set_toggle("triton", "on")
    qtbot.waitUntil(bar.isVisible)
    state.stop()
    qtbot.waitUntil(lambda: state.runner_state == "idle")
    state.edit(config_edit.with_preset(state.catalogue, state.configuration, "tiny"))
    state.set_toggle("triton", "off")
    state.start()
    running(qtbot, state, 3)
    state.set_toggle("adamw", "fused")
    qtbot.waitUntil(lambda: state.offers.offer is not None and not state.pending)
    offer = state.offers.offer
    assert (offer.base.preset, offer.other.preset) == ("tiny", "tiny")
    assert offer.base.toggles["triton"] == "off"


def test_segments_that_no_click_began_are_no_change(qtbot, state, bar):
    """As those of an attribution, which builds one arm after the other."""
    state.offers.set_automatic(True)
    toggles = {**state.running.toggles, "triton": "on"}
    arm = msgspec.structs.replace(state.running, toggles=toggles)
    state.send(protocol.Start(configuration=arm))
    qtbot.waitUntil(lambda: len(state.session.segments) == 2)
    qtbot.wait(400)
    assert state.running == arm and state.offers.offer is None and not bar.isVisible()


def test_auto_verdict_measures_by_itself_and_the_new_configuration_goes_on(
    qtbot, state, bar, asked
):
    state.offers.set_automatic(True)
    state.set_toggle("triton", "on")
    qtbot.waitUntil(lambda: bool(state.session.comparisons))
    running(qtbot, state)
    assert compared(state) == [({"triton": "off"}, {"triton": "on"})]
    kinds = [type(one).__name__ for one in asked if not isinstance(one, protocol.Check)]
    assert kinds == ["Compare", "Start"]
    assert asked[-1].configuration == state.running
    assert state.running.toggles["triton"] == "on"
    qtbot.wait(700)
    assert len(state.session.comparisons) == 1  # the run that goes on is no new change


def test_fast_but_wrong_is_red_in_auto_verdict_too(qtbot, state, bar):
    state.offers.set_automatic(True)
    state.set_toggle("compile", "reduce-overhead")
    qtbot.waitUntil(lambda: bool(state.session.comparisons))
    running(qtbot, state)
    qtbot.waitUntil(lambda: "WRONG results of B" in texts(bar))
    shown = texts(bar)
    assert "torch.compile: reduce-overhead: 1.2" in shown and "WRONG results of B" in shown
    assert bar.property("tone") == "bad"
    assert "x faster (95 % CI " in shown
    assert "B: wrong numbers: relative error 0.022, at most 0.0021 expected" in shown
    assert "B: torch.compile: reduce-overhead, no effect: no graph was captured" in shown
    tones = {label.text(): label.property("tone") for label in bar.findChildren(QLabel)}
    amber = next(text for text in tones if "no effect" in text)
    assert tones[amber] == "warning"


def test_quick_clicks_make_one_comparison(qtbot, state, bar, monkeypatch):
    state.offers.set_automatic(True)
    settle_ms = verdict_prompt.SETTLE_MS
    monkeypatch.setattr(
        verdict_prompt, "SETTLE_MS", 3_600_000
    )  # quick is what comes before it is over
    for place, (name, option) in enumerate(
        [("triton", "on"), ("adamw", "fused"), ("precision", "bf16")]
    ):
        state.set_toggle(name, option)
        if place < 2:  # each has run before the next click
            running(qtbot, state, place + 2)
    monkeypatch.setattr(verdict_prompt, "SETTLE_MS", settle_ms)
    qtbot.waitUntil(lambda: bool(state.session.comparisons))
    running(qtbot, state)
    qtbot.wait(700)
    assert compared(state) == [
        (
            {"precision": "fp32", "triton": "off", "adamw": "loop"},
            {"precision": "bf16", "triton": "on", "adamw": "fused"},
        )
    ]


def test_a_quick_click_whose_segment_is_slow_to_come_belongs_to_the_same_change(
    qtbot, state, bar, monkeypatch
):
    state.offers.set_automatic(True)
    monkeypatch.setattr(verdict_prompt, "SETTLE_MS", 3_600_000)
    state.set_toggle("triton", "on")
    running(qtbot, state, 2)
    monkeypatch.setattr(
        verdict_prompt, "SETTLE_MS", 1
    )  # over before the runner has heard of the click
    state.set_toggle("adamw", "fused")
    qtbot.waitUntil(lambda: bool(state.session.comparisons))
    running(qtbot, state)
    qtbot.wait(300)
    assert compared(state) == [
        ({"triton": "off", "adamw": "loop"}, {"triton": "on", "adamw": "fused"})
    ]


@pytest.mark.parametrize("drained", ["with what follows it", "alone"])
def test_a_click_during_a_comparison_waits_and_is_judged_next(
    qtbot, state, panel, bar, hold, drained
):
    hold.touch()
    if drained == "alone":  # as on a busy machine: the end, then what it touched, then idle

        def touch(message) -> None:
            if isinstance(message, protocol.Finished):
                state.stateChanged.emit()

        state.heard.connect(touch)
    state.offers.set_automatic(True)
    state.set_toggle("triton", "on")
    qtbot.waitUntil(lambda: state.verdicts.measuring)
    state.set_toggle("adamw", "fused")
    assert state.pending == {"adamw": "fused"}
    pending = "\n".join(label.text() for label in panel.findChildren(QLabel))
    assert "1 change for the verdict" in pending
    hold.unlink()
    qtbot.waitUntil(lambda: len(state.session.comparisons) == 2)
    running(qtbot, state)
    assert not state.failures
    assert compared(state) == [
        ({"triton": "off"}, {"triton": "on"}),
        ({"adamw": "loop"}, {"adamw": "fused"}),
    ]
    assert state.running.toggles["adamw"] == "fused"


def test_what_was_compared_is_not_compared_again_by_itself(qtbot, state, bar):
    state.offers.set_automatic(True)
    state.set_toggle("triton", "on")
    qtbot.waitUntil(lambda: len(state.session.comparisons) == 1)
    running(qtbot, state)
    assert state.session.comparisons[0].verdict == "FASTER"
    qtbot.wait(350)
    state.set_toggle("triton", "off")
    qtbot.waitUntil(lambda: "compared already" in texts(bar))
    qtbot.wait(700)
    assert len(state.session.comparisons) == 1
    press(qtbot, bar, "Compare again")
    qtbot.waitUntil(lambda: len(state.session.comparisons) == 2)


def test_stop_ends_the_comparison_and_the_run(qtbot, state, bar, hold):
    hold.touch()
    state.offers.set_automatic(True)
    state.set_toggle("triton", "on")
    qtbot.waitUntil(lambda: state.verdicts.measuring)
    state.stop()
    qtbot.waitUntil(lambda: state.runner_state == "idle" and not state.verdicts.busy)
    qtbot.wait(400)
    assert state.runner_state == "idle" and len(state.session.comparisons) == 1


def test_enough_ends_the_comparison_and_the_run_goes_on(qtbot, state, bar, hold):
    hold.touch()
    state.set_toggle("triton", "on")
    qtbot.waitUntil(bar.isVisible)
    press(qtbot, bar, "Verdict")
    qtbot.waitUntil(
        lambda: state.verdicts.measuring and len(state.session.comparisons[0].order) > 4,
    )
    press(qtbot, bar, "Enough")
    running(qtbot, state)
    assert 4 < len(state.session.comparisons[0].order) < 26
    assert state.running.toggles["triton"] == "on"


def test_undecided_can_be_measured_on_from_the_bar_and_the_run_goes_on(qtbot, state, bar, hold):
    hold.touch()
    state.set_toggle("triton", "on")
    qtbot.waitUntil(bar.isVisible)
    press(qtbot, bar, "Verdict")
    qtbot.waitUntil(
        lambda: state.verdicts.measuring and state.verdicts.newest.facts.get("pairs", 0) > 1,
    )
    press(qtbot, bar, "Enough")
    running(qtbot, state)
    hold.unlink()
    assert state.verdicts.newest.verdict == "UNDECIDED"
    more = state.verdicts.more_text()
    qtbot.waitUntil(lambda: more in [one.text() for one in bar.findChildren(QPushButton)])
    pairs = state.verdicts.newest.facts["pairs"]
    press(qtbot, bar, more)
    running(qtbot, state)
    assert len(state.session.comparisons) == 1
    assert state.session.comparisons[0].facts["pairs"] >= pairs + 12
    assert state.running.toggles["triton"] == "on"


def test_measuring_on_is_not_ended_by_an_interval_that_is_narrow_already(qtbot, state, bar, asked):
    """Else an interval of 0.4 % over the edge of 1 % could never be decided."""
    state.set_toggle("triton", "on")
    qtbot.waitUntil(bar.isVisible)
    state.verdicts.against_before()
    running(qtbot, state)
    state.verdicts.measure_more()
    assert isinstance(asked[-1], protocol.Compare)
    assert asked[-1].half_width == 0 and asked[-1].before


def test_a_comparison_that_fails_leaves_the_run_going(qtbot, state, bar):
    before = state.running
    state.set_toggle("triton", "on")
    running(qtbot, state, 2)
    state.verdicts.judge(before, msgspec.structs.replace(state.running, data="fails"))
    running(qtbot, state, 3)
    assert not state.verdicts.busy and state.failures
    assert state.running.toggles["triton"] == "on"


def test_a_runner_that_dies_in_a_comparison_leaves_nothing_waiting(qtbot, state, bar, hold):
    hold.touch()
    state.set_toggle("triton", "on")
    qtbot.waitUntil(bar.isVisible)
    press(qtbot, bar, "Verdict")
    qtbot.waitUntil(lambda: state.verdicts.measuring)
    state.start_runner()
    assert not state.verdicts.busy
    qtbot.waitUntil(lambda: state.runner_state == "idle")
    assert state.verdicts.why_not_before() == ""


def test_the_mode_is_remembered_and_both_switches_show_it(qtbot, ready, settings):
    box = ready.toggles.findChild(QCheckBox)
    assert not box.isChecked() and not ready.actions_["auto-verdict"].isChecked()
    qtbot.mouseClick(box, Qt.MouseButton.LeftButton, pos=box.rect().center() / 4)
    assert ready.state.offers.automatic
    assert ready.actions_["auto-verdict"].isChecked() and settings.auto_verdict
    ready.actions_["auto-verdict"].trigger()
    assert not box.isChecked() and not settings.auto_verdict
    settings.auto_verdict = True
    ready.state.offers.keep_in(settings)
    assert ready.state.offers.automatic
