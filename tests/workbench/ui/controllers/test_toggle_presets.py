"""Presets of toggles in the window: applied, told, saved, renamed, shared, undone."""

from __future__ import annotations

from fake_catalogue import OFF
from PySide6.QtWidgets import QInputDialog, QLabel, QMenu

from workbench import presets as files
from workbench import protocol
from workbench.ui.controllers import config_edit
from workbench.ui.menus import preset_menu
from workbench.ui.state import AppState


def texts(widget) -> str:
    return "\n".join(label.text() for label in widget.findChildren(QLabel))


def named(state, title: str) -> protocol.TogglePreset:
    return next(one for one in state.presets.offered if one.title == title)


def apply(qtbot, state, title: str) -> dict[str, str]:
    """Apply a preset of the runner; the toggles that came of it."""
    with qtbot.waitSignal(state.presets.changed, timeout=10_000):
        state.presets.apply(named(state, title))
    return switched(state)


def switched(state) -> dict[str, str]:
    toggles = state.configuration.toggles
    return {name: option for name, option in toggles.items() if option != OFF[name]}


def actions(menu: QMenu) -> dict[str, object]:
    return {action.text(): action for action in menu.actions() if action.text()}


def open_menu(panel) -> QMenu:
    menu = panel.presets.menu
    menu.aboutToShow.emit()
    return menu


def test_a_preset_is_applied_whole_and_undone_as_one_step(qtbot, state, panel):
    state.set_toggle("rope_cache", "shared")
    assert apply(qtbot, state, "Throughput") == {
        "precision": "amp_bf16",
        "adamw": "fused",
        "compile": "default",
    }
    assert not panel.presets.told.isVisible()  # all of it is chosen, as one can see
    assert state.undo.undoText() == "Toggle set Throughput"
    state.undo.undo()
    assert switched(state) == {"rope_cache": "shared"}
    state.undo.redo()
    assert "rope_cache" not in switched(state)


def test_what_cannot_be_used_is_left_out_and_told_with_the_reason(qtbot, state, panel):
    state.choose({"workload": "forward"}, "Forward")
    assert apply(qtbot, state, "Latency") == {
        "precision": "bf16",
        "triton": "on",
        "cuda_graphs": "on",
    }
    bar = panel.presets.told
    assert bar.isVisible()
    assert "Latency is chosen, but for:" in texts(bar)
    assert (
        "AdamW: Loop, and not Fused: acts on the backward pass, and this workload has none."
        in texts(bar)
    )
    bar.close_button.click()
    assert not bar.isVisible() and state.presets.told is None


def test_what_was_left_out_is_told_no_longer_once_the_preset_is_undone(qtbot, state, panel):
    apply(qtbot, state, "FlashAttention first")
    state.edit(config_edit.with_setting(state.configuration, "batch", 3))
    assert panel.presets.told.isVisible()
    state.undo.undo()
    assert state.presets.told is None and not panel.presets.told.isVisible()


def test_the_next_best_option_is_taken_and_told(qtbot, state, panel):
    assert apply(qtbot, state, "FlashAttention first")["attention"] == "flash3"
    (said,) = state.presets.told.left_out
    assert (
        said == "Attention backend: FlashAttention 3, and not xFormers: xformers is not installed."
    )


def test_a_preset_chosen_while_running_changes_the_run_at_once(qtbot, state, panel):
    state.start()
    qtbot.waitUntil(lambda: state.runner_state == "running")
    wanted = apply(qtbot, state, "Throughput")
    qtbot.waitUntil(lambda: len(state.session.segments) == 2)
    ran = state.session.segments[1].configuration.toggles
    assert {name: ran[name] for name in wanted} == wanted  # one segment for all of them


def test_an_answer_to_an_older_question_changes_nothing(qtbot, state, panel):
    with qtbot.waitSignal(state.presets.changed):
        state.presets.apply(named(state, "Latency"))
        state.presets.apply(named(state, "Eager"))
    qtbot.wait(50)
    assert switched(state) == {} and state.undo.count() == 0


def test_own_presets_are_saved_and_come_back_in_the_next_window(qtbot, state, panel, settings):
    state.set_toggle("triton", "on")
    state.presets.save("mine/with a slash & more")
    state.set_toggle("triton", "off")
    state.set_toggle("precision", "bf16")
    later = AppState()
    later.presets.keep_in(settings)
    assert later.presets.own["mine/with a slash & more"]["triton"] == "on"
    later.close()
    with qtbot.waitSignal(state.presets.changed):
        state.presets.apply_own("mine/with a slash & more")
    assert switched(state) == {"triton": "on"}


def test_saving_renaming_and_deleting_are_undone_like_toggles(state, panel, settings):
    state.presets.save("a")
    state.presets.save("b")
    state.presets.rename("a", "b")
    assert list(state.presets.own) == ["b 2", "b"]
    state.presets.remove("b")
    assert list(state.presets.own) == ["b 2"] and state.undo.undoText() == "Delete toggle set b"
    for left in (["b 2", "b"], ["a", "b"], ["a"], []):
        state.undo.undo()
        assert list(state.presets.own) == list(settings.toggle_presets) == left
    state.undo.redo()
    assert list(settings.toggle_presets) == ["a"]


def test_a_shared_file_is_taken_by_another_window(qtbot, state, panel, tmp_path):
    presets = state.presets
    state.set_toggle("triton", "on")
    presets.save("mine")
    presets.share("mine", tmp_path / "mine.json")
    assert files.read(tmp_path / "mine.json") == {"mine": presets.own["mine"]}
    state.set_toggle("triton", "off")
    presets.save("mine")  # now another one of that name
    presets.take(tmp_path / "mine.json")
    assert [presets.own[name]["triton"] for name in ("mine", "mine 2")] == ["off", "on"]
    assert "mine: now in the menu" in texts(panel.presets.told)
    presets.take(tmp_path / "mine.json")
    assert len(presets.own) == 3  # "mine" is another one, so that it is added once more
    state.undo.undo()
    assert len(presets.own) == 2


def test_of_a_file_what_is_here_is_applied_and_the_rest_told(qtbot, state, panel, tmp_path):
    files.write(tmp_path / "theirs.json", {"theirs": {"triton": "on", "warp": "9"}})
    presets = state.presets
    presets.take(tmp_path / "theirs.json")
    with qtbot.waitSignal(presets.changed):
        presets.apply_own("theirs")
    assert switched(state) == {"triton": "on"}
    assert presets.told.left_out == ("there is no toggle 'warp' here: warp=9 is left out",)


def test_a_file_that_is_none_is_refused_in_a_banner(state, panel, tmp_path):
    (tmp_path / "odd.json").write_text("[]")
    state.presets.take(tmp_path / "odd.json")
    assert "odd.json is no file of toggle sets" in state.failures[-1].sentence
    state.presets.save("mine")
    state.presets.share("mine", tmp_path / "no" / "folder.json")
    assert "cannot be written" in state.failures[-1].sentence


def test_the_menu_has_them_all_and_what_can_be_done(qtbot, state, panel):
    state.presets.save("mine")
    found = actions(open_menu(panel))
    assert list(found)[:5] == ["Eager", "Throughput", "FlashAttention first", "Latency", "mine"]
    assert found["Latency"].toolTip() == "Help of Latency."
    own = actions(found["mine"].menu())
    assert list(own) == ["Apply", "Rename …", "Share as a file …", "Delete"]
    own["Rename …"].trigger()
    panel.findChild(QInputDialog).textValueSelected.emit(" yours ")
    assert list(state.presets.own) == ["yours"]
    actions(actions(open_menu(panel))["yours"].menu())["Delete"].trigger()
    assert state.presets.own == {}
    actions(open_menu(panel))["Save these toggles as a set …"].trigger()
    panel.findChildren(QInputDialog)[-1].textValueSelected.emit("again")
    assert list(state.presets.own) == ["again"]


def test_the_menu_writes_and_reads_files(state, panel, tmp_path, monkeypatch):
    state.presets.save("mine")
    path = str(tmp_path / "shared")
    ask = preset_menu.QFileDialog
    monkeypatch.setattr(ask, "getSaveFileName", lambda *_: (path, ""))
    actions(actions(open_menu(panel))["mine"].menu())["Share as a file …"].trigger()
    state.presets.remove("mine")
    monkeypatch.setattr(ask, "getOpenFileName", lambda *_: (f"{path}.json", ""))
    actions(open_menu(panel))["Add toggle sets of a file …"].trigger()
    assert list(state.presets.own) == ["mine"]


def test_the_palette_and_the_menu_bar_have_presets(qtbot, ready):
    state = ready.state
    state.presets.save("mine")
    run = actions(ready.actions_.menus["Run"])
    run["Toggle sets"].menu().aboutToShow.emit()
    assert {"Throughput", "mine"} <= actions(run["Toggle sets"].menu()).keys()
    entries = {entry.text: entry for entry in ready.actions_.entries()}
    assert not entries["Toggle set: mine"].why_not
    with qtbot.waitSignal(state.presets.changed):
        entries["Toggle set: Throughput"].run()
    assert switched(state)["compile"] == "default"


def test_without_a_runner_they_are_disabled_and_say_why(state, panel, monkeypatch):
    for without in ("none", "starting", "dead"):
        monkeypatch.setattr(state, "runner_state", without)
        action = actions(open_menu(panel))["Throughput"]
        assert not action.isEnabled() and "The runner is not ready." in action.toolTip()


def test_settings_that_cannot_be_read_hold_no_presets(settings):
    settings._store.setValue("toggle_presets", '{"a": 1}')
    assert settings.toggle_presets == {}
