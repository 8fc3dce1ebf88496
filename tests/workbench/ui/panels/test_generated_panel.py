"""The panel of generated text: what fills it, what it keeps, and where it stays."""

from __future__ import annotations

import pytest
from fake_session import session
from PySide6.QtGui import QColor

from workbench import protocol

PROMPT = "the quick brown fox "


def route(workspace, *messages):
    """Let messages arrive as the runner sends them."""
    for message in messages:
        for changed in workspace.router.route(message):
            changed.emit()


def wrote(segment, text, start=0, sequence=0, prompt=""):
    return protocol.Generated(
        segment=segment, sequence=sequence, start=start, text=text, prompt=prompt
    )


@pytest.fixture
def generating(ready):
    """The window, to which a segment was announced that is about to write."""
    settings = {"batch": 1, "sequence": 20, "temperature": 0.8, "top_p": 0.95}
    configuration = ready.workspace.configuration.edited
    changed = type(configuration)(
        family="mamba2",
        preset="tiny",
        workload="generate",
        settings=settings,
        toggles=configuration.toggles,
    )
    route(
        ready.workspace,
        protocol.SegmentStarted(index=0, configuration=changed, label="adamw=fused"),
    )
    return ready


def panel(window):
    return window.dock_area.docks["text"].widget()


def test_an_empty_panel_says_what_would_fill_it(ready):
    assert panel(ready).empty.isVisibleTo(panel(ready))


def test_text_is_shown_as_it_comes_after_its_prompt_in_another_colour(generating):
    shown = panel(generating)
    route(generating.workspace, wrote(0, "jumps ", prompt=PROMPT))
    assert not shown.empty.isVisibleTo(shown)
    route(generating.workspace, wrote(0, "over", start=6))
    assert shown.text.toPlainText() == PROMPT + "jumps over"
    colours = []
    for position in (1, len(PROMPT) + 3):
        cursor = shown.text.textCursor()
        cursor.setPosition(position)
        colours.append(cursor.charFormat().foreground().color())
    theme = generating.workspace.theme.current
    assert colours == [QColor(theme.muted), QColor(theme.text)]
    route(generating.workspace, wrote(0, "sleeps", sequence=1, prompt="a cat "))
    assert shown.text.toPlainText() == "a cat sleeps"


def test_the_line_above_says_what_wrote_it_and_how_long_its_prompts_took(generating):
    facts = {"prefill_ms": 12.345, "prefills": 3}
    route(generating.workspace, protocol.Facts(segment=0, ledger=facts))
    route(generating.workspace, wrote(0, "x", prompt=PROMPT))
    assert panel(generating).note.text() == (
        "Segment 0: AdamW: Fused; temperature 0.8; top-p 0.95; "
        "prompt of 20 tokens processed in 12.3 ms (median of 3)"
    )


def test_the_first_text_brings_the_panel_to_the_front_and_no_later_one(qtbot, generating):
    def behind():
        return generating.dock_area.docks["text"].visibleRegion().isEmpty()

    qtbot.waitUntil(behind)
    route(generating.workspace, wrote(0, "x", prompt=PROMPT))
    qtbot.waitUntil(lambda: not behind())
    generating.dock_area.bring("events")
    qtbot.waitUntil(behind)
    route(generating.workspace, wrote(0, "y", start=1))
    qtbot.wait(20)
    assert behind()


def test_a_session_without_text_empties_the_panel(generating):
    route(generating.workspace, wrote(0, "x", prompt=PROMPT))
    generating.workspace.session.show(session())
    assert panel(generating).empty.isVisibleTo(panel(generating))
    generating.workspace._link.retire()


def test_who_has_scrolled_back_stays_there(generating):
    shown = panel(generating)
    generating.dock_area.bring("text")
    route(generating.workspace, wrote(0, "line\n" * 200, prompt=PROMPT))
    bar = shown.text.verticalScrollBar()
    assert bar.maximum() > 0 and bar.value() == bar.maximum()
    bar.setValue(3)
    route(generating.workspace, wrote(0, "more\n" * 20, start=200))
    assert bar.value() == 3
