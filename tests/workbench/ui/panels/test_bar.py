"""A bar above a panel's content: its buttons have their place at once, and stay while pressed."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtWidgets import QApplication, QPushButton, QScrollArea, QVBoxLayout, QWidget

from workbench.theming.theme import DARK
from workbench.ui.panels import _widgets
from workbench.ui.panels._bar import Bar

MARKED, PLAIN = ("Compute: did it help?", "verdict", "accent"), ("0.90 of the step time.", "", "")


@pytest.fixture
def bar(qtbot):
    """A bar that shows nothing yet, above content that takes the room."""
    host, bar, content = QWidget(), Bar(lambda: None), QWidget()
    qtbot.addWidget(host)
    column = QVBoxLayout(host)
    column.addWidget(_widgets.FittedScrollArea(bar))
    column.addWidget(content, 1)
    content.setMinimumHeight(40)
    host.resize(320, 200)
    host.show()
    host.activateWindow()
    qtbot.waitUntil(host.isActiveWindow)
    yield bar


def only(bar) -> QPushButton:
    (button,) = bar.findChildren(QPushButton)
    return button


def is_completely_visible(widget) -> bool:
    """Return True if nothing of the widget is clipped."""
    return widget.visibleRegion().boundingRect() == widget.rect() and (
        widget.height() >= widget.sizeHint().height()
    )


@pytest.mark.parametrize("lines", [[MARKED], [MARKED, PLAIN]])
def test_a_button_can_be_pressed_as_soon_as_its_bar_is_there(qtbot, bar, lines):
    pressed = []
    for _ in range(2):  # it comes, goes and comes again
        bar.say("info", lines, [("Verdict", lambda: pressed.append("Verdict"))], DARK)
        assert bar.isVisible() and is_completely_visible(only(bar))
        qtbot.mouseClick(only(bar), Qt.MouseButton.LeftButton)
        bar.leave()
        assert bar.visibleRegion().isEmpty()
    assert pressed == ["Verdict", "Verdict"]


def test_more_lines_do_not_move_a_button(bar):
    """The prediction comes while the mouse is on its way to the button of the offer."""
    bar.say("info", [MARKED], [("Verdict", lambda: None)], DARK)
    before = only(bar).geometry().center()
    bar.say("info", [MARKED, PLAIN, PLAIN], [("Verdict", lambda: None)], DARK)
    assert only(bar).geometry().contains(before) and is_completely_visible(only(bar))


def test_more_lines_move_several_buttons_at_once(bar):
    buttons = [("Measure more", lambda: None), ("Details", lambda: None)]
    for lines in ([MARKED], [MARKED, PLAIN]):
        bar.say("info", lines, buttons, DARK)
        assert all(map(is_completely_visible, bar.findChildren(QPushButton)))


def test_a_bar_that_scrolls_scrolls_further_at_once(bar):
    bar.say("info", [PLAIN] * 12, [], DARK)
    (area,) = (area for area in bar.window().findChildren(QScrollArea))
    height, most = area.height(), area.verticalScrollBar().maximum()
    assert most > 0
    bar.say("info", [PLAIN] * 20, [("Enough", lambda: None)], DARK)
    assert area.height() == height and area.verticalScrollBar().maximum() > most
    area.ensureWidgetVisible(only(bar))
    assert is_completely_visible(only(bar))


def test_a_new_number_between_press_and_release_takes_no_click_away(qtbot, bar):
    ended = []
    for count in range(3):
        bar.say("info", [(f"{count} pairs", "", ""), PLAIN], [("Enough", ended.clear)], DARK)
    qtbot.mousePress(only(bar), Qt.MouseButton.LeftButton)
    now = [("4 pairs", "", ""), PLAIN], [("Enough", lambda: ended.append(4))]
    bar.say("info", *now, DARK)
    qtbot.mouseRelease(only(bar), Qt.MouseButton.LeftButton)
    assert ended == [4]


def test_a_press_on_a_button_that_became_another_does_nothing(qtbot, bar):
    done = []
    bar.say("info", [MARKED], [("Verdict", lambda: done.append("Verdict"))], DARK)
    qtbot.mousePress(only(bar), Qt.MouseButton.LeftButton)
    bar.say("info", [MARKED], [("Enough", lambda: done.append("Enough"))], DARK)
    qtbot.mouseRelease(only(bar), Qt.MouseButton.LeftButton)
    assert not done


def test_what_is_replaced_before_it_was_shown_never_comes_up_as_a_window(qtbot, bar):
    column = bar.window().layout()
    for text in ("first", "second"):
        column.addWidget(_widgets.note(text))
        bar.say("info", [(text, "verdict", "accent")], [(text, lambda: None)], DARK)
    own = bar.window()
    column.removeWidget(bar.window().findChild(QScrollArea))
    _widgets.clear(column)
    shown = []
    watch = Shown(shown)
    QApplication.instance().installEventFilter(watch)
    qtbot.wait(20)
    QApplication.instance().removeEventFilter(watch)
    assert not shown and own.isActiveWindow()


class Shown(QObject):
    """Notes the windows that come up."""

    def __init__(self, shown) -> None:
        super().__init__()
        self._shown = shown

    def eventFilter(self, watched, event) -> bool:
        if event.type() == QEvent.Type.Show and watched.isWidgetType() and watched.isWindow():
            self._shown.append(watched)
        return False


def test_the_focus_stays_in_the_bar_whose_buttons_change(qtbot, bar):
    bar.say("info", [MARKED], [("Verdict", lambda: None)], DARK)
    only(bar).setFocus()
    bar.say("info", [MARKED, PLAIN], [("Verdict", lambda: None)], DARK)
    assert only(bar).hasFocus()
    bar.say("info", [MARKED, PLAIN], [("Enough", lambda: None)], DARK)
    assert only(bar).text() == "Enough" and only(bar).hasFocus()
    bar.say("info", [MARKED], [], DARK)
    assert bar.close_button.hasFocus()
