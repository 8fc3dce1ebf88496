"""Tests of the layout: at every size and in both themes nothing overlaps, and nothing is cut off.

Computed from the geometry of the widgets. The thorough variant also runs at twice the scale, in a
process of its own, because Qt reads the scale once.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_session import messages
from PySide6.QtCore import QPoint, QRect
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractScrollArea,
    QAbstractSpinBox,
    QComboBox,
    QLabel,
    QLineEdit,
    QProgressBar,
    QTabBar,
)

SIZES = ((900, 600), (1024, 700), (1280, 800), (1440, 900), (1920, 1080), (2560, 1440))
PARTS = (
    QAbstractButton,
    QAbstractSpinBox,
    QComboBox,
    QLabel,
    QLineEdit,
    QProgressBar,
)
SLACK_PX = 2  # that two neighbours may share: frames and focus rings


def parts_of(panel):
    """Return the controls and texts of a panel that are seen, without the insides of others."""
    visible = [part for kind in PARTS for part in panel.findChildren(kind) if part.isVisible()]
    return [part for part in dict.fromkeys(visible) if not is_inside(part, panel)]


def is_inside(part, panel):
    parent = part.parentWidget()
    while parent is not None and parent is not panel:
        if isinstance(parent, (*PARTS, QTabBar)):
            return True
        parent = parent.parentWidget()
    return False


def seen(part, panel):
    """Return the part's rectangle in the panel, cut to the areas that scroll around it."""
    rectangle = QRect(part.mapTo(panel, QPoint(0, 0)), part.size())
    parent = part.parentWidget()
    while parent is not None and parent is not panel:
        if isinstance(parent.parentWidget(), QAbstractScrollArea):
            rectangle &= QRect(parent.mapTo(panel, QPoint(0, 0)), parent.size())
        parent = parent.parentWidget()
    return rectangle


def scrolls(part, panel):
    parent = part.parentWidget()
    while parent is not None and parent is not panel:
        if isinstance(parent, QAbstractScrollArea):
            return True
        parent = parent.parentWidget()
    return False


def problems(panel, where):
    """Return what overlaps another part of the panel, or leaves it."""
    parts = parts_of(panel)
    rectangles = [seen(part, panel) for part in parts]
    lines = []
    for number, (part, rectangle) in enumerate(zip(parts, rectangles, strict=True)):
        if not scrolls(part, panel) and not panel.rect().contains(
            rectangle.adjusted(SLACK_PX, SLACK_PX, -SLACK_PX, -SLACK_PX)
        ):
            lines.append(f"{where}: {named(part)} leaves its panel: {rectangle}")
        for other, area in zip(parts[number + 1 :], rectangles[number + 1 :], strict=True):
            shared = rectangle & area
            if shared.width() > SLACK_PX and shared.height() > SLACK_PX:
                lines.append(f"{where}: {named(part)} lies over {named(other)}: {shared}")
    return lines


def squeezed(panel, where):
    """Return the controls whose text has no room."""
    lines = []
    for part in parts_of(panel):
        if isinstance(part, (QAbstractButton, QAbstractSpinBox, QComboBox)) and (
            part.height() < part.fontMetrics().height()
            or (isinstance(part, QAbstractButton) and part.width() + SLACK_PX < least_width(part))
        ):
            lines.append(f"{where}: the text of {named(part)} has no room in {part.size()}")
    return lines


def least_width(button):
    return button.fontMetrics().horizontalAdvance(button.text().replace("&", ""))


def named(part):
    text = getattr(part, "text", str)()
    return f"{type(part).__name__} {part.objectName() or part.accessibleName() or text[:30]!r}"


@pytest.fixture
def full(qtbot, ready, monkeypatch):
    """The window with a session in which every panel has something to show."""
    for message in messages("verdict"):
        ready.workspace.router.route(message)
    for changed in (
        ready.workspace.session.segmentsChanged,
        ready.workspace.session.comparisonsChanged,
        ready.workspace.session.eventsChanged,
    ):
        changed.emit()
    return ready


def check(qtbot, window, sizes, themes):
    lines = []
    for theme in themes:
        window.set_theme(theme)
        for size in sizes:
            window.resize(*size)
            window.dock_area.proportion()
            for name, dock in window.dock_area.docks.items():
                window.dock_area.bring(name)
                qtbot.wait(1)
                panel = dock.widget()
                where = f"{name} {size[0]}x{size[1]} {theme}"
                lines += problems(panel, where) + squeezed(panel, where)
            lines += problems(window.toolbar, f"toolbar {size} {theme}")
            lines += problems(window.status, f"status {size} {theme}")
    window.set_theme("dark")
    assert not lines, "\n".join(lines)


def test_nothing_overlaps_or_is_cut_off_in_the_smallest_window(qtbot, full):
    check(qtbot, full, SIZES[:1], ["dark"])


@pytest.mark.slow
def test_nothing_overlaps_or_is_cut_off_at_any_size_in_both_themes(qtbot, full):
    check(qtbot, full, SIZES, ["light", "dark"])


@pytest.mark.slow
def test_nothing_overlaps_or_is_cut_off_at_twice_the_scale():
    """Qt reads the scale once, as its application begins."""
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-q", "-m", "", __file__, "-k", "any_size"],
        env={**os.environ, "QT_SCALE_FACTOR": "2"},
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout[-4000:]
