"""What the chosen family has nothing for is folded away, counted, and shown on a click."""

from __future__ import annotations

import msgspec
import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLabel, QScrollArea, QToolButton

from workbench.protocol import Blocked

NO_GPU = Blocked("needs a CUDA GPU; this runner uses the CPU", "Run it on a machine with a GPU.")
NEVER = Blocked("HYDRA never calls it", "Choose another family.", absent=True)


@pytest.fixture
def panel(ready):
    """The panel of a window whose family has nothing for the toggles of two groups."""

    def say(**whys):
        """Block all options but the first of these toggles."""
        state = ready.state
        rows = ready.toggles.rows
        blocked = {
            name: {option.name: why for option in rows[name].toggle.options[1:]}
            for name, why in whys.items()
        }
        state.availability = msgspec.structs.replace(state.availability, blocked=blocked)
        state.availabilityChanged.emit()
        return ready.toggles

    return say


def line(panel, reason="model"):
    return panel.findChild(QToolButton, f"unavailable-{reason}")


def hidden(panel):
    return {name for name, row in panel.rows.items() if not row.isVisible()}


def test_toggles_that_the_family_has_nothing_for_are_folded_and_counted(qtbot, panel):
    found = panel(triton_rope=NEVER, adamw=NEVER)
    assert hidden(found) == {"triton_rope", "adamw"}
    assert line(found).isVisible()
    assert line(found).text() == "2 are for other models, show"
    qtbot.mouseClick(line(found), Qt.MouseButton.LeftButton)
    assert hidden(found) == set()
    qtbot.mouseClick(line(found), Qt.MouseButton.LeftButton)
    assert hidden(found) == {"triton_rope", "adamw"}


def test_a_group_without_a_row_has_no_heading(panel):
    buttons = panel().findChildren(QToolButton, "group")
    (heading,) = (button for button in buttons if button.text() == "Optimizer")
    assert heading.isVisible()
    found = panel(adamw=NEVER)
    assert not heading.isVisible()
    assert line(found).text() == "1 is for other models, show"


def test_what_needs_a_gpu_is_one_line_of_its_own(qtbot, panel):
    found = panel(triton=NO_GPU, compile=NO_GPU, adamw=NEVER)
    assert line(found, "gpu").text() == "2 need a CUDA GPU, show"
    assert line(found).text() == "1 is for other models, show"
    assert hidden(found) == {"triton", "compile", "adamw"}
    qtbot.mouseClick(line(found, "gpu"), Qt.MouseButton.LeftButton)
    assert hidden(found) == {"adamw"}
    row = found.rows["triton"]
    qtbot.mouseClick(row.lock, Qt.MouseButton.LeftButton)
    assert any(
        label.isVisible() and "Run it on a machine with a GPU" in label.text()
        for label in row.findChildren(QLabel, "blocked")
    )


def test_the_filter_finds_toggles_by_name_group_and_option_also_unavailable_ones(panel):
    found = panel(adamw=NEVER)
    for text, names in (
        ("adam", {"adamw"}),
        ("optimizer", {"adamw"}),
        ("kernels rope", {"triton_rope"}),
        ("bf16", {"precision"}),
        ("no such toggle", set()),
    ):
        found.presets.filter.setText(text)
        assert found.rows.keys() - hidden(found) == names, text
        assert not line(found).isVisible()
    found.presets.filter.clear()
    assert hidden(found) == {"adamw"}


def test_only_changed_only_available_and_collapsed_groups(panel, ready):
    found = panel(adamw=NEVER)
    ready.state.set_toggle("rope_cache", "shared")
    found = panel(adamw=NEVER)
    found.presets.only_changed.trigger()
    assert found.rows.keys() - hidden(found) == {"rope_cache"}
    found.presets.only_changed.trigger()
    line(found).click()
    assert hidden(found) == set()
    found.presets.only_available.trigger()
    assert hidden(found) == {"adamw"} and not line(found).isVisible()
    found.presets.only_available.trigger()
    found.presets.collapseAll.emit(True)
    assert found.rows.keys() - hidden(found) == {"precision"}  # a group of its own name
    found.presets.filter.setText("rms")
    assert found.rows.keys() - hidden(found) == {"triton_rms_norm"}


def test_what_a_click_makes_available_or_is_chosen_stays_in_sight(panel, ready):
    there = msgspec.structs.replace(NEVER, absent=False, set={"precision": "bf16"})
    found = panel(triton_rope=there, adamw=NEVER)
    assert hidden(found) == {"adamw"}
    ready.state.set_toggle("adamw", "fused")
    found = panel(triton_rope=there, adamw=NEVER)
    assert hidden(found) == set()
    assert not line(found).isVisible()


def test_one_option_that_may_be_had_is_enough_to_stay(panel, ready):
    found = panel(triton_rope=NEVER)
    state = ready.state
    blocked = {"triton_rope": {"triton": NEVER}}
    state.availability = msgspec.structs.replace(state.availability, blocked=blocked)
    state.availabilityChanged.emit()
    assert hidden(found) == set()


def test_the_column_is_as_high_as_what_it_shows(panel):
    long = Blocked("many words " * 20, "Others.", set={"precision": "bf16"})
    names = ("triton_rope", "checkpointing", "compile", "cuda_graphs")
    found = panel(adamw=NEVER, **dict.fromkeys(names, long))
    for name in names:
        found.rows[name].lock.click()
    QTest.qWait(50)
    (area,) = (one for one in found.findChildren(QScrollArea) if one.isAncestorOf(line(found)))
    body = area.widget()
    last = max(row.mapTo(body, QPoint(0, row.height())).y() for row in found.rows.values())
    foot = line(found).mapTo(body, QPoint(0, line(found).height())).y()
    viewport = area.viewport()
    assert body.width() == viewport.width(), "it scrolls sideways"
    assert last < foot <= body.height() <= max(foot + 40, viewport.height())
