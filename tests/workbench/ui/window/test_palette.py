"""The palette finds commands, toggles and presets by parts of their names, and runs them."""

from __future__ import annotations

import fake_session
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QWidget

from workbench.ui.dialogs.preferences import Preferences
from workbench.ui.menus.actions import ACTIONS, MENUS, TOOLBAR
from workbench.ui.menus.palette import match, rank
from workbench.ui.menus.palette_entries import PREFERENCES, list_entries, list_submenus

NAMES = st.text(alphabet="abcdefgh ijk", min_size=1, max_size=20)


@given(NAMES, st.data())
def test_any_letters_of_a_name_in_their_order_find_it(name, data):
    mask = data.draw(st.lists(st.booleans(), min_size=len(name), max_size=len(name)))
    query = "".join(letter for letter, keep in zip(name, mask, strict=True) if keep)
    assert match(query, name) is not None


@given(NAMES, NAMES)
def test_letters_that_a_name_lacks_find_nothing(name, query):
    lacking = set(query) - set(name) - {" "}
    if lacking:
        assert match(query, name) is None


def test_starts_of_words_rank_before_letters_inside():
    assert match("ro", "Run on") > match("ro", "Zero")
    assert match("rms", "RMSNorm: Triton") > match("rms", "Triton kernels: more so")


def test_typing_finds_an_action_and_return_runs_it(qtbot, ready):
    ready.actions_["palette"].trigger()
    palette = ready.palette_
    qtbot.keyClicks(palette.line, "paus vie")
    assert palette.list.currentIndex().data() == "Pause view"
    qtbot.keyClick(palette.line, Qt.Key.Key_Return)
    assert not ready.workspace.session.follow
    assert not palette.isVisible()


def test_an_option_of_a_toggle_can_be_chosen_by_name(qtbot, ready):
    ready.show_palette()
    qtbot.keyClicks(ready.palette_.line, "precbf")
    qtbot.keyClick(ready.palette_.line, Qt.Key.Key_Down)
    qtbot.keyClick(ready.palette_.line, Qt.Key.Key_Return)
    assert ready.workspace.configuration.edited.toggles["precision"] in ("amp_bf16", "bf16")


def test_evident_words_find_actions_panels_and_preferences(ready, settings):
    settings.save_named_layout("wide", ready.dock_area.save_layout())
    window, actions = ready, ready.actions_
    entries = [*list_entries(window, actions), *list_submenus(window, actions)]
    for query, text in (
        ("font", "Preferences: Font size …"),
        ("text size", "Preferences: Font size …"),
        ("zoom", "Keyboard shortcuts"),
        ("unit", "Preferences: Memory units …"),
        ("folder", "Preferences: Default folder …"),
        ("settings", "Preferences …"),
        ("dark", "Theme: Dark"),
        ("colour", "Theme: Light"),
        ("CO2", "Commands"),
        ("cost", "Commands"),
        ("help", "Usage"),
        ("manual", "Usage"),
        ("exit", "Quit"),
        ("screenshot", "Copy plot as image"),
        ("svg", "Export plot …"),
        ("html", "Report …"),
        ("hotkeys", "Keyboard shortcuts"),
        ("f8", "Verdict against the configuration before"),
        ("resume", "Pause"),
        ("abort", "Cancel"),
        ("bookmark", "Add note …"),
        ("baseline", "Panel: Segments"),
        ("roofline", "Panel: Breakdown"),
        ("batch", "Panel: Build"),
        ("version", "About"),
        ("hardware", "Doctor"),
        ("wide", "Layouts: wide"),
        ("pairing 5", "Background pairing: 5 % of the time"),
    ):
        scores = {entry.text: rank(query, entry) for entry in entries}
        matches = [name for name, score in scores.items() if score is not None]
        best = sorted(matches, key=scores.__getitem__, reverse=True)[:6]
        assert text in best, (query, best)


def test_the_words_of_a_preference_show_its_field(qtbot, ready):
    ready.show_preferences()
    fields = ready.findChild(Preferences).findChildren(QWidget)
    names = {field.objectName() for field in fields if field.objectName().startswith("preference-")}
    assert len(names) == len(PREFERENCES)
    ready.findChild(Preferences).reject()
    for title in PREFERENCES:
        ready.show_palette()
        qtbot.keyClicks(ready.palette_.line, f"Preferences: {title}")
        qtbot.keyClick(ready.palette_.line, Qt.Key.Key_Return)
        dialog = QApplication.activeModalWidget()
        qtbot.waitUntil(lambda dialog=dialog: dialog.focusWidget().objectName() in names)
        assert title.lower().replace(" ", "-") in dialog.focusWidget().objectName()
        assert dialog.focusWidget().isVisible()
        dialog.reject()


def test_presets_and_workloads_are_chosen_by_name(ready):
    for kind in ("preset", "workload"):
        entries = list_entries(ready, ready.actions_)
        entry = next(
            entry
            for entry in entries
            if entry.text.startswith(f"{kind.capitalize()}: ") and not entry.why_not
        )
        before = getattr(ready.workspace.configuration.edited, kind)
        entry.run()
        assert getattr(ready.workspace.configuration.edited, kind) != before


def test_what_has_become_possible_since_the_palette_opened_is_offered(qtbot, ready):
    ready.show_palette()
    palette = ready.palette_
    for letters, why_not in (("repor", "Nothing has been measured yet."), ("t", "")):
        qtbot.keyClicks(palette.line, letters)
        (report,) = (entry for entry in palette._shown if entry.text == "Report …")
        assert report.why_not == why_not
        ready.workspace.session.show(fake_session.session())


def test_what_cannot_be_done_now_says_why_and_does_nothing(qtbot, ready):
    ready.show_palette()
    palette = ready.palette_
    qtbot.keyClicks(palette.line, "stop")
    row = next(index for index, entry in enumerate(palette._shown) if entry.text == "Stop")
    assert palette._shown[row].why_not == "No run is in progress."
    palette._run(row)
    assert palette.isVisible()
    qtbot.keyClick(palette.line, Qt.Key.Key_Escape)
    assert not palette.isVisible()


def test_every_action_has_a_place_a_tip_and_a_shortcut_of_its_own():
    names = [action.id for action in ACTIONS]
    shortcuts = [action.shortcut for action in ACTIONS if action.shortcut]
    assert len(set(names)) == len(names)
    assert len(set(shortcuts)) == len(shortcuts)
    assert all(action.menu in MENUS and action.tip for action in ACTIONS)
    assert set(filter(None, TOOLBAR)) <= set(names)


def test_a_disabled_action_says_why_in_its_tool_tip(ready):
    tip = ready.actions_["save"].toolTip()
    assert not ready.actions_["save"].isEnabled()
    assert "Nothing has been measured yet." in tip


def test_what_finds_nothing_is_said_to(ready):
    ready.actions_["palette"].trigger()
    palette = ready.palette_
    palette.line.setText("zzzz")
    model = palette.list.model()
    assert model.rowCount() == 1 and "has this name" in model.index(0, 0).data()
    palette._run(0)
    assert palette.isVisible()  # there is nothing to run
