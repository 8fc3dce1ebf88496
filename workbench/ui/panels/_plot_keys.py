"""Keys that zoom and move a plot while it has the keyboard: after a click, or Tab to its menu.

They are not in the window's table of actions, which does not know which plot they act on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QWidget

ZOOM = 1.5  # factor of the range at each press
STEP = 0.2  # share of the range


class PlotView(Protocol):
    """View of a plot that keys change."""

    def zoom(self, factor: float) -> None:
        """Make the range of x wider by this factor."""

    def pan(self, share: float) -> None:
        """Move the range of x by a share of its width."""

    def reset(self) -> None:
        """Show all data."""


@dataclass(frozen=True)
class PlotKey:
    """Change of a plot's view, and the keys that trigger it; menus show the first of them."""

    id: str
    text: str
    keys: tuple[str, ...]
    act: Callable[[PlotView], None]


PLOT_KEYS = (
    PlotKey("zoom-in", "Zoom in", ("W", "+", "=", "Ctrl++", "Ctrl+="), lambda c: c.zoom(1 / ZOOM)),
    PlotKey("zoom-out", "Zoom out", ("S", "-", "Ctrl+-"), lambda c: c.zoom(ZOOM)),
    PlotKey("left", "Move left", ("A", "Left"), lambda c: c.pan(-STEP)),
    PlotKey("right", "Move right", ("D", "Right"), lambda c: c.pan(STEP)),
    PlotKey("reset", "Show everything", ("Home", "0", "Ctrl+0"), lambda c: c.reset()),
)


def actions(widget: QWidget, view: PlotView) -> dict[str, QAction]:
    """Add an action for each of the keys to a plot's widget, and return the actions by id.

    The keys work while the widget or a child of it has the keyboard.
    """
    actions = {}
    for key in PLOT_KEYS:
        action = QAction(key.text, widget)
        action.setShortcuts([QKeySequence(keys) for keys in key.keys])
        action.setShortcutContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
        action.setShortcutVisibleInContextMenu(True)
        action.triggered.connect(lambda _=False, act=key.act: act(view))
        widget.addAction(action)
        actions[key.id] = action
    return actions
