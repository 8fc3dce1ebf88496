"""Toggles without any option for the chosen family are folded, counted, and shown on a click."""

from __future__ import annotations

import msgspec
import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QLabel, QScrollArea, QToolButton

from workbench.protocol import Blocked

NO_GPU = Blocked("needs a CUDA GPU; this runner uses the CPU", "Run it on a machine with a GPU.")
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


def line(panel, reason="model"):
    return panel.findChild(QToolButton, f"unavailable-{reason}")


def hidden(panel):
    return {name for name, row in panel.rows.items() if not row.isVisible()}


def test_toggles_that_the_family_has_nothing_for_are_folded_and_counted(qtbot, panel):
    toggles = panel(triton_rope=NEVER, adamw=NEVER)
    assert hidden(toggles) == {"triton_rope", "adamw"}
    assert line(toggles).isVisible()
    assert line(toggles).text() == "2 are for other models, show"
    qtbot.mouseClick(line(toggles), Qt.MouseButton.LeftButton)
    assert hidden(toggles) == set()
    qtbot.mouseClick(line(toggles), Qt.MouseButton.LeftButton)
    assert hidden(toggles) == {"triton_rope", "adamw"}


def test_a_group_without_a_row_has_no_heading(panel):
    buttons = panel().findChildren(QToolButton, "group")
    (heading,) = (button for button in buttons if button.text() == "Optimizer")
    assert heading.isVisible()
    toggles = panel(adamw=NEVER)
    assert not heading.isVisible()
    assert line(toggles).text() == "1 is for other models, show"


def test_what_needs_a_gpu_is_one_line_of_its_own(qtbot, panel):
    toggles = panel(triton=NO_GPU, compile=NO_GPU, adamw=NEVER)
    assert line(toggles, "gpu").text() == "2 need a CUDA GPU, show"
    assert line(toggles).text() == "1 is for other models, show"
    assert hidden(toggles) == {"triton", "compile", "adamw"}
    qtbot.mouseClick(line(toggles, "gpu"), Qt.MouseButton.LeftButton)
    assert hidden(toggles) == {"adamw"}
    row = toggles.rows["triton"]
    qtbot.mouseClick(row.lock, Qt.MouseButton.LeftButton)
    assert any(
        label.isVisible() and "Run it on a machine with a GPU" in label.text()
        for label in row.findChildren(QLabel, "blocked")
    )


def test_the_filter_finds_toggles_by_name_group_and_option_also_unavailable_ones(panel):
    toggles = panel(adamw=NEVER)
    for text, names in (
        ("adam", {"adamw"}),
        ("optimizer", {"adamw"}),
        ("kernels rope", {"triton_rope"}),
        ("bf16", {"precision"}),
        ("no such toggle", set()),
    ):
        toggles.presets.filter.setText(text)
        assert toggles.rows.keys() - hidden(toggles) == names, text
        assert not line(toggles).isVisible()
    toggles.presets.filter.clear()
    assert hidden(toggles) == {"adamw"}


def test_only_changed_only_available_and_collapsed_groups(panel, ready):
    toggles = panel(adamw=NEVER)
    ready.workspace.configuration.set_toggle("rope_cache", "shared")
    toggles = panel(adamw=NEVER)
    toggles.presets.only_changed.trigger()
    assert toggles.rows.keys() - hidden(toggles) == {"rope_cache"}
    toggles.presets.only_changed.trigger()
    line(toggles).click()
    assert hidden(toggles) == set()
    toggles.presets.only_available.trigger()
    assert hidden(toggles) == {"adamw"} and not line(toggles).isVisible()
    toggles.presets.only_available.trigger()
    toggles.presets.collapseAll.emit(True)
    assert toggles.rows.keys() - hidden(toggles) == {"precision"}  # a group of its own name
    toggles.presets.filter.setText("rms")
    assert toggles.rows.keys() - hidden(toggles) == {"triton_rms_norm"}


def test_what_a_click_makes_available_or_is_chosen_stays_in_sight(panel, ready):
    there = msgspec.structs.replace(NEVER, absent=False, set={"precision": "bf16"})
    toggles = panel(triton_rope=there, adamw=NEVER)
    assert hidden(toggles) == {"adamw"}
    ready.workspace.configuration.set_toggle("adamw", "fused")
    toggles = panel(triton_rope=there, adamw=NEVER)
    assert hidden(toggles) == set()
    assert not line(toggles).isVisible()


def test_one_option_that_may_be_had_is_enough_to_stay(panel, ready):
    toggles = panel(triton_rope=NEVER)
    workspace = ready.workspace
    blocked = {"triton_rope": {"triton": NEVER}}
    workspace.configuration.availability = msgspec.structs.replace(
        workspace.configuration.availability, blocked=blocked
    )
    workspace.configuration.availabilityChanged.emit()
    assert hidden(toggles) == set()


def test_the_column_is_as_high_as_what_it_shows(qtbot, panel):
    long = Blocked("many words " * 20, "Others.", set={"precision": "bf16"})
    names = ("triton_rope", "checkpointing", "compile", "cuda_graphs")
    toggles = panel(adamw=NEVER, **dict.fromkeys(names, long))
    for name in names:
        toggles.rows[name].lock.click()
    qtbot.wait(50)
    (area,) = (
        area for area in toggles.findChildren(QScrollArea) if area.isAncestorOf(line(toggles))
    )
    body, viewport = area.widget(), area.viewport()

    def fits() -> bool:
        last = max(row.mapTo(body, QPoint(0, row.height())).y() for row in toggles.rows.values())
        foot = line(toggles).mapTo(body, QPoint(0, line(toggles).height())).y()
        return last < foot <= body.height() <= max(foot + 40, viewport.height())

    qtbot.waitUntil(lambda: body.width() == viewport.width())  # else it scrolls sideways
    qtbot.waitUntil(fits)
