"""The keys of a plot: zoom, move and show all, only while the plot has the keyboard."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import QApplication, QSlider, QSpinBox, QVBoxLayout, QWidget
from synthetic import gpu_session

from workbench.plots import PLOTS, Run
from workbench.theming.theme import LIGHT
from workbench.ui import panel_list
from workbench.ui.menus.actions import ACTIONS
from workbench.ui.panels._chart import Chart
from workbench.ui.panels._plot_keys import PLOT_KEYS, STEP, ZOOM

Key = Qt.Key
CTRL = Qt.KeyboardModifier.ControlModifier


@pytest.fixture
def host(qtbot, tasks):
    """Return a chart beside controls that use the same keys."""
    host = QWidget()
    layout = QVBoxLayout(host)
    host.chart = Chart(PLOTS["step_time"], LIGHT, tasks)
    host.slider, host.spin = QSlider(Qt.Orientation.Horizontal), QSpinBox()
    for widget in (host.chart, host.slider, host.spin):
        layout.addWidget(widget)
    qtbot.addWidget(host)
    host.resize(900, 600)
    host.show()
    host.activateWindow()
    qtbot.waitUntil(host.isActiveWindow)
    host.chart.show_runs([Run(gpu_session(2, 200))])
    return host


@pytest.fixture
def chart(qtbot, host):
    """Return the chart, which has been clicked."""
    view = host.chart._view
    qtbot.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=view.rect().center())
    assert QApplication.focusWidget() is host.chart.more, "which shows that it has it"
    host.chart.set_cursor(None)
    return host.chart


def press(qtbot, which, modifiers=Qt.KeyboardModifier.NoModifier) -> None:
    qtbot.keyClick(QApplication.focusWidget(), which, modifiers)


def shown(chart: Chart) -> tuple[float, float]:
    start, stop = chart.canvas.vb.viewRange()[0]
    return start, stop


@pytest.mark.parametrize(
    ("which", "modifiers", "factor"),
    [
        (Key.Key_Plus, Qt.KeyboardModifier.NoModifier, 1 / ZOOM),
        (Key.Key_Plus, CTRL, 1 / ZOOM),
        (Key.Key_Equal, CTRL, 1 / ZOOM),
        (Key.Key_Minus, Qt.KeyboardModifier.NoModifier, ZOOM),
        (Key.Key_Minus, CTRL, ZOOM),
    ],
)
def test_plus_and_minus_zoom_about_the_middle(qtbot, chart, which, modifiers, factor):
    start, stop = shown(chart)
    press(qtbot, which, modifiers)
    low, high = shown(chart)
    assert high - low == pytest.approx(factor * (stop - start))
    assert low + high == pytest.approx(start + stop)


def test_with_the_crosshair_in_the_plot_they_zoom_about_it(qtbot, chart):
    start, stop = shown(chart)
    cursor = start + 0.2 * (stop - start)
    chart.set_cursor(cursor)
    press(qtbot, Key.Key_Plus)
    low, high = shown(chart)
    assert (cursor - low) / (high - low) == pytest.approx(0.2)
    chart.set_cursor(stop + 5)  # of another plot of the stack, outside of what is shown here
    before = sum(shown(chart))
    press(qtbot, Key.Key_Plus)
    assert sum(shown(chart)) == pytest.approx(before)


def test_arrows_move_the_range_and_keep_its_width_and_data_in_view(qtbot, chart):
    for _ in range(4):
        press(qtbot, Key.Key_Plus)
    start, stop = shown(chart)
    press(qtbot, Key.Key_Right)
    by = STEP * (stop - start)
    assert shown(chart) == pytest.approx((start + by, stop + by))
    press(qtbot, Key.Key_Left)
    assert shown(chart) == pytest.approx((start, stop))
    first, last = chart.canvas.x_span()
    for which in (Key.Key_Left, Key.Key_Right):
        for _ in range(100):
            press(qtbot, which)
        low, high = shown(chart)
        assert high - low == pytest.approx(stop - start)
        assert first - 1e-9 <= (low + high) / 2 <= last + 1e-9


def test_zooming_ends_where_there_is_nothing_more_to_see(qtbot, chart):
    for _ in range(200):
        press(qtbot, Key.Key_Plus)
    low, high = shown(chart)
    assert 0 < high - low < 1e-3
    first, last = chart.canvas.x_span()
    for _ in range(200):
        press(qtbot, Key.Key_Minus)
    low, high = shown(chart)
    assert high - low == pytest.approx(4 * (last - first), rel=1e-6)


@pytest.mark.parametrize("which", [Key.Key_Home, Key.Key_0])
def test_home_and_0_show_everything_again(qtbot, chart, which):
    full_range = shown(chart)
    for other in (Key.Key_Plus, Key.Key_Plus, Key.Key_Right):
        press(qtbot, other)
    assert shown(chart) != pytest.approx(full_range)
    press(qtbot, which)
    assert shown(chart) == pytest.approx(full_range)


def test_other_controls_keep_the_same_keys(qtbot, host):
    before = shown(host.chart)
    host.slider.setFocus()
    press(qtbot, Key.Key_Right)
    assert host.slider.value() == 1
    press(qtbot, Key.Key_Home)
    assert host.slider.value() == 0
    host.spin.setFocus()
    host.spin.selectAll()
    press(qtbot, Key.Key_0)
    press(qtbot, Key.Key_Plus)
    assert host.spin.text() == "0"
    assert shown(host.chart) == pytest.approx(before)


def test_the_menu_of_a_plot_shows_each_key_beside_what_it_does(host):
    listed = {action.text(): action for action in host.chart.menu().actions()}
    for key in PLOT_KEYS:
        assert listed[key.text].shortcut() == QKeySequence(key.keys[0])
        assert listed[key.text].isShortcutVisibleInContextMenu()
    texts = [action.text() for action in host.chart.menu().actions()]
    assert texts.count("Show everything") == 1
    start, stop = shown(host.chart)
    listed["Zoom in"].trigger()
    assert shown(host.chart)[1] - shown(host.chart)[0] < stop - start


def test_no_key_of_a_plot_is_a_key_of_the_window():
    taken = {QKeySequence(action.shortcut).toString() for action in ACTIONS if action.shortcut}
    keys = [QKeySequence(shortcut).toString() for key in PLOT_KEYS for shortcut in key.keys]
    assert not taken & set(keys) and len(set(keys)) == len(keys)


def test_a_plot_without_data_has_no_keys(qtbot, host):
    session = gpu_session(1, 10)
    session.segments = []
    host.chart.show_runs([Run(session)])
    assert not any(action.isEnabled() for action in host.chart.keys.values())
    host.chart.show_runs([Run(gpu_session(1, 50))])
    assert all(action.isEnabled() for action in host.chart.keys.values())


def test_the_plots_of_a_session_move_together_and_home_follows_the_run_again(
    qtbot, workspace, show
):
    panel = panel_list.live(workspace)
    qtbot.addWidget(panel)
    panel.resize(1000, 700)
    panel.show()
    show(gpu_session(2, 300))
    first, second = panel.charts["step_time"], panel.charts["memory"]
    qtbot.waitUntil(lambda: panel.is_drawn)
    panel.activateWindow()
    qtbot.waitUntil(panel.isActiveWindow)
    first.more.setFocus()
    press(qtbot, Key.Key_Plus)
    assert not workspace.session.follow
    assert shown(second) == pytest.approx(shown(first))
    press(qtbot, Key.Key_Home)
    assert workspace.session.follow


def test_a_click_that_gives_a_plot_the_keyboard_is_still_a_click(qtbot, host):
    with qtbot.waitSignal(host.chart.clicked) as clicked:
        view = host.chart._view
        qtbot.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=view.rect().center())
    assert isinstance(clicked.args[0], QPointF)
