"""What the chosen family has nothing for is folded away, counted, and shown on a click."""

from __future__ import annotations

import msgspec
import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLabel, QScrollArea, QToolButton

from workbench.protocol import Blocked

NEVER = Blocked("HYDRA never calls it", "Choose another family.", absent=True)


@pytest.fixture
def panel(ready):
    """The panel of a window whose family has nothing for the toggles of two groups."""

    def say(**whys):
        """Block all options but the first of these toggles."""
        workspace = ready.workspace
        rows = ready.toggles.rows
        blocked = {
            name: {option.name: why for option in rows[name].toggle.options[1:]}
            for name, why in whys.items()
        }
        workspace.configuration.availability = msgspec.structs.replace(
            workspace.configuration.availability, blocked=blocked
        )
        workspace.configuration.availabilityChanged.emit()
        return ready.toggles

    return say


def line(panel):
    return panel.findChild(QToolButton, "folded")


def hidden(panel):
    return {name for name, row in panel.rows.items() if not row.isVisible()}


def test_toggles_that_the_family_has_nothing_for_are_folded_and_counted(qtbot, panel):
    found = panel(triton_rope=NEVER, adamw=NEVER)
    assert hidden(found) == {"triton_rope", "adamw"}
    assert line(found).isVisible()
    assert line(found).text() == "2 more are for other models"
    qtbot.mouseClick(line(found), Qt.MouseButton.LeftButton)
    assert hidden(found) == set()
    qtbot.mouseClick(line(found), Qt.MouseButton.LeftButton)
    assert hidden(found) == {"triton_rope", "adamw"}


def test_a_group_without_a_row_has_no_heading(panel):
    (heading,) = [each for each in panel().findChildren(QLabel) if each.text() == "Optimizer"]
    assert heading.isVisible()
    found = panel(adamw=NEVER)
    assert not heading.isVisible()
    assert line(found).text() == "1 more is for other models"


def test_what_is_only_blocked_or_is_chosen_stays_in_sight(panel, ready):
    there = msgspec.structs.replace(NEVER, absent=False)
    found = panel(triton_rope=there, adamw=NEVER)
    assert hidden(found) == {"adamw"}
    ready.workspace.configuration.set_toggle("adamw", "fused")
    found = panel(triton_rope=there, adamw=NEVER)
    assert hidden(found) == set()
    assert not line(found).isVisible()


def test_one_option_that_may_be_had_is_enough_to_stay(panel, ready):
    found = panel(triton_rope=NEVER)
    workspace = ready.workspace
    blocked = {"triton_rope": {"triton": NEVER}}
    workspace.configuration.availability = msgspec.structs.replace(
        workspace.configuration.availability, blocked=blocked
    )
    workspace.configuration.availabilityChanged.emit()
    assert hidden(found) == set()


def test_the_column_is_as_high_as_what_it_shows(panel):
    long = Blocked("many words " * 20, "Others.")
    found = panel(adamw=NEVER, triton_rope=long, checkpointing=long, compile=long, cuda_graphs=long)
    QTest.qWait(50)
    (area,) = (one for one in found.findChildren(QScrollArea) if one.isAncestorOf(line(found)))
    body = area.widget()
    last = max(row.mapTo(body, QPoint(0, row.height())).y() for row in found.rows.values())
    foot = line(found).mapTo(body, QPoint(0, line(found).height())).y()
    viewport = area.viewport()
    assert body.width() == viewport.width(), "it scrolls sideways"
    assert last < foot <= body.height() <= max(foot + 40, viewport.height())
