"""Presets of toggles in the window: applied, told, saved, renamed, shared, undone."""

from __future__ import annotations

from fake_catalogue import OFF
from PySide6.QtWidgets import QInputDialog, QLabel, QMenu

from workbench import presets as files
from workbench import protocol
from workbench.ui.menus import preset_menu
from workbench.ui.menus.palette_entries import list_entries
from workbench.ui.state import config_edit
from workbench.ui.workspace import Workspace


def texts(widget) -> str:
    return "\n".join(label.text() for label in widget.findChildren(QLabel))


def named(workspace, title: str) -> protocol.TogglePreset:
    return next(preset for preset in workspace.presets.offered if preset.title == title)


def apply(qtbot, workspace, title: str) -> dict[str, str]:
    """Apply a preset of the runner; the toggles that came of it."""
    with qtbot.waitSignal(workspace.presets.changed):
        workspace.presets.apply(named(workspace, title))
    return switched(workspace)


def switched(workspace) -> dict[str, str]:
    toggles = workspace.configuration.edited.toggles
    return {name: option for name, option in toggles.items() if option != OFF[name]}


def actions(menu: QMenu) -> dict[str, object]:
    return {action.text(): action for action in menu.actions() if action.text()}


def open_menu(panel) -> QMenu:
    menu = panel.presets.menu
    menu.aboutToShow.emit()
    return menu


def test_a_preset_is_applied_whole_and_undone_as_one_step(qtbot, workspace, panel):
    workspace.configuration.set_toggle("rope_cache", "shared")
    assert apply(qtbot, workspace, "Throughput") == {
        "precision": "amp_bf16",
        "adamw": "fused",
        "compile": "default",
    }
    assert not panel.presets.outcome.isVisible()  # all of it is chosen, as one can see
    assert workspace.configuration.undo.undoText() == "Toggle set Throughput"
    workspace.configuration.undo.undo()
    assert switched(workspace) == {"rope_cache": "shared"}
    workspace.configuration.undo.redo()
    assert "rope_cache" not in switched(workspace)


def test_what_cannot_be_used_is_left_out_and_told_with_the_reason(qtbot, workspace, panel):
    workspace.configuration.choose({"workload": "forward"}, "Forward")
    assert apply(qtbot, workspace, "Latency") == {
        "precision": "bf16",
        "triton": "on",
        "cuda_graphs": "on",
    }
    bar = panel.presets.outcome
    assert bar.isVisible()
    assert "Latency is chosen, except:" in texts(bar)
    assert (
        "AdamW: Loop instead of Fused: needs a backward pass, which this workload does not have."
        in texts(bar)
    )
    bar.close_button.click()
    assert not bar.isVisible() and workspace.presets.outcome is None


def test_what_was_left_out_is_told_no_longer_once_the_preset_is_undone(qtbot, workspace, panel):
    apply(qtbot, workspace, "FlashAttention first")
    workspace.configuration.edit(
        config_edit.with_setting(workspace.configuration.edited, "batch", 3)
    )
    assert panel.presets.outcome.isVisible()
    workspace.configuration.undo.undo()
    assert workspace.presets.outcome is None and not panel.presets.outcome.isVisible()


def test_the_next_best_option_is_taken_and_told(qtbot, workspace, panel):
    assert apply(qtbot, workspace, "FlashAttention first")["attention"] == "flash3"
    (sentence,) = workspace.presets.outcome.left_out
    assert (
        sentence
        == "Attention backend: FlashAttention 3 instead of xFormers: xformers is not installed."
    )


def test_a_preset_chosen_while_running_changes_the_run_at_once(qtbot, workspace, panel):
    workspace.runs.start()
    qtbot.waitUntil(lambda: workspace.run.state == "running")
    wanted = apply(qtbot, workspace, "Throughput")
    qtbot.waitUntil(lambda: len(workspace.session.shown.segments) == 2)
    ran = workspace.session.shown.segments[1].configuration.toggles
    assert {name: ran[name] for name in wanted} == wanted  # one segment for all of them


def test_an_answer_to_an_older_question_changes_nothing(qtbot, workspace, panel):
    with qtbot.waitSignal(workspace.presets.changed):
        workspace.presets.apply(named(workspace, "Latency"))
        workspace.presets.apply(named(workspace, "Eager"))
    qtbot.wait(50)
    assert switched(workspace) == {} and workspace.configuration.undo.count() == 0


def test_own_presets_are_saved_and_come_back_in_the_next_window(qtbot, workspace, panel, settings):
    workspace.configuration.set_toggle("triton", "on")
    workspace.presets.save("mine/with a slash & more")
    workspace.configuration.set_toggle("triton", "off")
    workspace.configuration.set_toggle("precision", "bf16")
    later = Workspace()
    later.presets.keep_in(settings)
    assert later.presets.own["mine/with a slash & more"]["triton"] == "on"
    later.close()
    with qtbot.waitSignal(workspace.presets.changed):
        workspace.presets.apply_own("mine/with a slash & more")
    assert switched(workspace) == {"triton": "on"}


def test_saving_renaming_and_deleting_are_undone_like_toggles(workspace, panel, settings):
    workspace.presets.save("a")
    workspace.presets.save("b")
    workspace.presets.rename("a", "b")
    assert list(workspace.presets.own) == ["b 2", "b"]
    workspace.presets.remove("b")
    assert (
        list(workspace.presets.own) == ["b 2"]
        and workspace.configuration.undo.undoText() == "Delete toggle set b"
    )
    for left in (["b 2", "b"], ["a", "b"], ["a"], []):
        workspace.configuration.undo.undo()
        assert list(workspace.presets.own) == list(settings.toggle_presets) == left
    workspace.configuration.undo.redo()
    assert list(settings.toggle_presets) == ["a"]


def test_a_shared_file_is_taken_by_another_window(qtbot, workspace, panel, tmp_path):
    presets = workspace.presets
    workspace.configuration.set_toggle("triton", "on")
    presets.save("mine")
    presets.export_file("mine", tmp_path / "mine.json")
    assert files.read(tmp_path / "mine.json") == {"mine": presets.own["mine"]}
    workspace.configuration.set_toggle("triton", "off")
    presets.save("mine")  # now another one of that name
    presets.import_file(tmp_path / "mine.json")
    assert [presets.own[name]["triton"] for name in ("mine", "mine 2")] == ["off", "on"]
    assert "mine: added to the menu" in texts(panel.presets.outcome)
    presets.import_file(tmp_path / "mine.json")
    assert len(presets.own) == 3  # "mine" is another one, so that it is added once more
    workspace.configuration.undo.undo()
    assert len(presets.own) == 2


def test_of_a_file_what_is_here_is_applied_and_the_rest_told(qtbot, workspace, panel, tmp_path):
    files.write(tmp_path / "theirs.json", {"theirs": {"triton": "on", "warp": "9"}})
    presets = workspace.presets
    presets.import_file(tmp_path / "theirs.json")
    with qtbot.waitSignal(presets.changed):
        presets.apply_own("theirs")
    assert switched(workspace) == {"triton": "on"}
    assert presets.outcome.left_out == ("there is no toggle 'warp' here, so warp=9 is left out",)


def test_a_file_that_is_none_is_refused_in_a_banner(workspace, panel, tmp_path):
    (tmp_path / "odd.json").write_text("[]")
    workspace.presets.import_file(tmp_path / "odd.json")
    assert "odd.json is not a file of toggle sets" in workspace.failures.recent[-1].sentence
    workspace.presets.save("mine")
    workspace.presets.export_file("mine", tmp_path / "no" / "folder.json")
    assert "cannot be written" in workspace.failures.recent[-1].sentence


def test_the_menu_has_them_all_and_what_can_be_done(qtbot, workspace, panel):
    workspace.presets.save("mine")
    entries = actions(open_menu(panel))
    assert list(entries)[:5] == ["Eager", "Throughput", "FlashAttention first", "Latency", "mine"]
    assert entries["Latency"].toolTip() == "Help of Latency."
    own = actions(entries["mine"].menu())
    assert list(own) == ["Apply", "Rename …", "Share as a file …", "Delete"]
    own["Rename …"].trigger()
    panel.findChild(QInputDialog).textValueSelected.emit(" yours ")
    assert list(workspace.presets.own) == ["yours"]
    actions(actions(open_menu(panel))["yours"].menu())["Delete"].trigger()
    assert workspace.presets.own == {}
    actions(open_menu(panel))["Save these toggles as a set …"].trigger()
    panel.findChildren(QInputDialog)[-1].textValueSelected.emit("again")
    assert list(workspace.presets.own) == ["again"]


def test_the_menu_writes_and_reads_files(workspace, panel, tmp_path, monkeypatch):
    workspace.presets.save("mine")
    path = str(tmp_path / "shared")
    ask = preset_menu.QFileDialog
    monkeypatch.setattr(ask, "getSaveFileName", lambda *_: (path, ""))
    actions(actions(open_menu(panel))["mine"].menu())["Share as a file …"].trigger()
    workspace.presets.remove("mine")
    monkeypatch.setattr(ask, "getOpenFileName", lambda *_: (f"{path}.json", ""))
    actions(open_menu(panel))["Add toggle sets of a file …"].trigger()
    assert list(workspace.presets.own) == ["mine"]


def test_the_palette_and_the_menu_bar_have_presets(qtbot, ready):
    workspace = ready.workspace
    workspace.presets.save("mine")
    run = actions(ready.actions_.menus["Run"])
    run["Toggle sets"].menu().aboutToShow.emit()
    assert {"Throughput", "mine"} <= actions(run["Toggle sets"].menu()).keys()
    entries = {entry.text: entry for entry in list_entries(ready, ready.actions_)}
    assert not entries["Toggle set: mine"].why_not
    with qtbot.waitSignal(workspace.presets.changed):
        entries["Toggle set: Throughput"].run()
    assert switched(workspace)["compile"] == "default"


def test_without_a_runner_they_are_disabled_and_say_why(workspace, panel, monkeypatch):
    for without in ("none", "starting", "dead"):
        monkeypatch.setattr(workspace.run, "state", without)
        action = actions(open_menu(panel))["Throughput"]
        assert not action.isEnabled() and "The runner is not ready." in action.toolTip()


def test_settings_that_cannot_be_read_hold_no_presets(settings):
    settings._store.setValue("toggle_presets", '{"a": 1}')
    assert settings.toggle_presets == {}
