"""The first start: what the tool is for, a sample, recent files, the tour and the help pages."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import QPoint, QRect, QSize, Qt, QUrl
from PySide6.QtWidgets import QPushButton, QToolButton, QWidget

from workbench import titles
from workbench.ui.dialogs.help import HelpDialog
from workbench.ui.docks import fit
from workbench.ui.help_pages import PAGES
from workbench.ui.panels.start_page import PURPOSE, SAMPLE, StartPage
from workbench.ui.tour import STOPS, Tour


@pytest.fixture
def page(qtbot, workspace):
    page = StartPage(workspace.session, workspace.theme)
    qtbot.addWidget(page)
    page.resize(700, 500)
    page.show()
    return page


def test_the_first_page_says_what_the_tool_is_for_and_opens_a_sample(qtbot, workspace, page):
    assert page._line.text() == PURPOSE
    qtbot.mouseClick(page.sample, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: workspace.session.path == SAMPLE)
    assert workspace.session.shown.comparisons and not workspace.session.live


def test_the_first_page_offers_the_tour_and_recent_files(qtbot, tmp_path, page):
    paths = [tmp_path / f"{number}.h5" for number in range(6)]
    opened, tours = [], []
    page.offer_more(lambda: tours.append(1), paths, opened.append)
    buttons = {button.text(): button for button in page.findChildren(QPushButton)}
    assert [text for text in buttons if text.endswith(".h5")] == [
        f"Open {number}.h5" for number in range(4)
    ]
    buttons["Open 2.h5"].click()
    buttons["Take the tour"].click()
    assert opened == [paths[2]] and tours == [1]


def test_recent_files_with_one_name_are_told_apart_by_their_folders(page):
    names = ("a/run.h5", "b/c/run.h5", "d/c/run.h5", "other.h5")
    page.offer_more(lambda: None, [Path("/sessions", name) for name in names], lambda path: None)
    texts = [button.text() for button in page.findChildren(QPushButton)]
    assert [text for text in texts if text.endswith(".h5")] == [f"Open {name}" for name in names]


@given(st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=4), unique_by=tuple))
def test_names_of_files_are_distinct_ends_of_their_paths(parts):
    paths = [Path("/", *some) for some in parts]
    names = titles.distinct_files(paths)
    assert len(set(names)) == len(paths)
    assert all(str(path).endswith(name) for path, name in zip(paths, names, strict=True))


@pytest.mark.parametrize("size", [(900, 600), (1440, 900)])
def test_the_tour_has_five_callouts_inside_the_window(qtbot, ready, settings, size):
    ready.resize(*size)
    assert not settings.tour_shown
    ready.actions_["tour"].trigger()
    (tour,) = ready.findChildren(Tour)
    assert settings.tour_shown and len(STOPS) == 5
    for number in range(1, 6):
        assert tour.count.text() == f"{number} of 5"
        assert ready.rect().contains(tour.geometry()), number
        label = tour.text
        assert label.height() >= label.heightForWidth(label.width())
        target = tour.target
        covered = QRect(target.mapTo(ready, QPoint(0, 0)), target.size())
        assert target.isVisible() and tour._frame.geometry().contains(covered)
        tour.next_button.click()
    qtbot.waitUntil(lambda: not ready.findChildren(Tour))


def test_the_tour_follows_a_panel_that_the_docks_resize(qtbot, ready):
    ready.start_tour()
    (tour,) = ready.findChildren(Tour)
    build, live = ready.dock_area.docks["build"], ready.dock_area.docks["live"]
    wider = build.width() + 60
    ready.dock_area.resizeDocks(
        [build, live], [wider, live.width() - 60], Qt.Orientation.Horizontal
    )

    def framed():
        area = QRect(build.mapTo(ready, QPoint(0, 0)), build.size())
        assert build.width() == wider
        assert tour._frame.geometry() == area.adjusted(-2, -2, 2, 2)

    qtbot.waitUntil(framed)


class Framed(QWidget):
    """A window with the frame of a window manager, which the offscreen platform lacks."""

    BORDER, TITLE = 1, 20

    def frameSize(self):
        return self.size() + QSize(2 * self.BORDER, self.TITLE + self.BORDER)

    def frameGeometry(self):
        return QRect(self.pos(), self.frameSize())


@pytest.mark.parametrize(("width", "height"), [(5000, 4000), (300, 200)])
def test_a_window_fits_the_screen_with_its_frame(qtbot, width, height):
    window = Framed()
    qtbot.addWidget(window)
    screen = window.screen().availableGeometry()
    window.setGeometry(screen.right() - 100, screen.bottom() - 50, width, height)
    window.show()
    fit(window)
    assert screen.contains(window.frameGeometry())
    assert window.size() == QSize(width, height) or window.frameSize() == screen.size()


def test_no_button_has_the_keyboard_focus_at_first(qtbot, ready):
    assert not isinstance(ready.focusWidget(), QToolButton | QPushButton)


@pytest.mark.parametrize("gone", ["disabled", "hidden"])
def test_no_other_button_takes_the_focus_of_one_that_is_gone(qtbot, ready, gone):
    button = ready.toolbar.widgetForAction(ready.actions_["run"])
    button.setFocus()
    qtbot.waitUntil(button.hasFocus)
    if gone == "disabled":
        ready.actions_["run"].setEnabled(False)
    else:
        ready.actions_["run"].setVisible(False)
    assert ready.hasFocus()


def test_return_goes_through_the_tour(qtbot, ready):
    ready.start_tour()
    (tour,) = ready.findChildren(Tour)
    for _ in range(5):
        qtbot.keyClick(tour.next_button, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: not ready.findChildren(Tour))


def test_escape_ends_the_tour(qtbot, ready):
    ready.start_tour()
    (tour,) = ready.findChildren(Tour)
    qtbot.keyClick(tour, Qt.Key.Key_Escape)
    qtbot.waitUntil(lambda: not ready.findChildren(Tour))


def test_the_help_has_its_pages_and_follows_links_between_them(qtbot, ready):
    for action in ("help", "help-verdict", "help-plots", "help-models", "help-gpus"):
        assert ready.actions_[action] in ready.actions_.menus["Help"].actions()
    ready.actions_["help-verdict"].trigger()
    (dialog,) = ready.findChildren(HelpDialog)
    assert "random pairs of blocks" in dialog.page.toPlainText()
    for page in PAGES:
        dialog.show_page(page.name)
        text = dialog.page.toPlainText()
        assert len(text) > 200 and "Part of the" not in text, page.name
    dialog.page.anchorClicked.emit(QUrl("USER_MODELS.md#the-contract"))
    assert "build()" in dialog.page.toPlainText()
    dialog.close()
