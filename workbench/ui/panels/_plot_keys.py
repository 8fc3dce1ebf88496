"""What the keys of a plot do while it has the keyboard: a click gives it, or Tab to its menu.

They are no keys of the window's, whose table of actions has no plot to act on, and other controls
keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QKeySequence

if TYPE_CHECKING:
    from workbench.ui.panels._chart import Chart

ZOOM = 1.5  # of the range, at each press
STEP = 0.2  # of the range


@dataclass(frozen=True)
class PlotKey:
    """One thing that a key does to a plot; the first of the ``keys`` is the one that is told."""

    id: str
    text: str
    keys: tuple[str, ...]
    act: Callable[[Chart], None]


PLOT_KEYS = (
    PlotKey("zoom-in", "Zoom in", ("W", "+", "=", "Ctrl++", "Ctrl+="), lambda c: c.zoom(1 / ZOOM)),
    PlotKey("zoom-out", "Zoom out", ("S", "-", "Ctrl+-"), lambda c: c.zoom(ZOOM)),
    PlotKey("left", "Move left", ("A", "Left"), lambda c: c.pan(-STEP)),
    PlotKey("right", "Move right", ("D", "Right"), lambda c: c.pan(STEP)),
    PlotKey("reset", "Show everything", ("Home", "0", "Ctrl+0"), lambda c: c.reset()),
)


def actions(chart: Chart) -> dict[str, QAction]:
    """The chart's own actions by name, whose keys count while the chart has the keyboard."""
    found = {}
    for key in PLOT_KEYS:
        action = QAction(key.text, chart)
        action.setShortcuts([QKeySequence(each) for each in key.keys])
        action.setShortcutContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
        action.setShortcutVisibleInContextMenu(True)
        action.triggered.connect(lambda _=False, act=key.act: act(chart))
        chart.addAction(action)
        found[key.id] = action
    return found
