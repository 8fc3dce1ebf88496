"""The splitter that divides its room by shares."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget

from workbench.ui.panels._splitter import Splitter


def test_a_double_click_on_a_handle_divides_the_room_as_at_the_start(qtbot):
    splitter = Splitter(Qt.Orientation.Horizontal, (QWidget(), 3), (QWidget(), 1))
    qtbot.addWidget(splitter)
    splitter.resize(407, 100)
    splitter.show()
    start = splitter.sizes()
    assert abs(start[0] - 3 * start[1]) <= 4
    splitter.setSizes([100, 300])
    assert splitter.sizes() != start
    qtbot.mouseDClick(splitter.handle(1), Qt.MouseButton.LeftButton)
    assert splitter.sizes() == start
