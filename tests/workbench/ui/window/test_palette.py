"""The palette finds commands, toggles and presets by parts of their names, and runs them."""

from __future__ import annotations

import fake_session
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import Qt

from workbench.ui.menus.actions import ACTIONS, MENUS, TOOLBAR
from workbench.ui.menus.palette import match

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
