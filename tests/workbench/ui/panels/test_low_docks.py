"""A dock with less room than its panel needs scrolls to all of it, and covers no other dock."""

from __future__ import annotations

from itertools import combinations, pairwise

import attribution_samples
import profile_samples
from complete_session import everything
from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QTabBar

from sessions.model import Session
from workbench import protocol
from workbench.ui.panels import _widgets


def test_in_large_type_a_low_dock_scrolls_to_all_of_its_verdict(qtbot, judged, large_type):
    large_type.resize(800, 500)
    large_type.dock_area.proportion()
    large_type.dock_area.bring("verdict")
    large_type.workspace.session.sessionChanged.emit()
    panel = large_type.verdict
    area = _widgets.area_of(panel)
    parts = [panel.headline, panel.ratio, panel.more, panel.judge, panel.calibrate, panel.table]

    def are_complete() -> bool:
        lines = (panel.headline, panel.ratio)
        spans = [(part.mapTo(panel, QPoint()).y(), part.height()) for part in parts]
        return (
            panel.table.isVisible()
            and panel.width() == area.viewport().width()
            and all(line.height() >= line.heightForWidth(line.width()) for line in lines)
            and all(y + height <= below for (y, height), (below, _) in pairwise(spans[:3]))
            and panel.table.height() >= panel.table.minimumSizeHint().height()
            and sum(spans[-1]) <= panel.height()
        )

    qtbot.waitUntil(are_complete)
    assert area.verticalScrollBar().maximum() > 0 and area.horizontalScrollBar().maximum() == 0
    for part in parts:
        area.ensureWidgetVisible(part)
        assert part.visibleRegion().boundingRect().width() == part.width()


def test_in_large_type_docks_of_a_small_window_cover_no_other(qtbot, complete_window, large_type):
    large_type.resize(800, 500)
    large_type.dock_area.proportion()
    area = large_type.dock_area
    for name in ("verdict", "sweep", "breakdown", "live"):
        area.bring(name)
        qtbot.waitUntil(lambda name=name: area.docks[name].font().pointSizeF() == 14)
        shown = [area.docks[dock].geometry() for dock in ("build", "toggles", name, "segments")]
        assert all(area.rect().contains(geometry) for geometry in shown), name
        assert not any(a.intersects(b) for a, b in combinations(shown, 2)), name
        bars = [bar.geometry() for bar in area.findChildren(QTabBar) if bar.isVisible()]
        assert len(bars) == 2, name
        assert not any(bar.intersects(geometry) for bar in bars for geometry in shown), name


def test_no_text_of_the_status_bar_widens_the_window(qtbot, ready):
    ready.resize(800, 500)
    ready.workspace.runs.start()
    long_text = "module_with_a_long_name." * 12
    ready.workspace.router.route(protocol.State(state="building", text="Building"))
    ready.workspace.router.route(protocol.Progress(task="Compile", fraction=0.5, text=long_text))
    ready.workspace.run.stateChanged.emit()
    ready.status._names["file"].say("s" * 250)
    line = ready.status._progress_text
    qtbot.waitUntil(lambda: "…" in line.text())
    assert ready.width() == 800 and long_text[:200].split(".")[0] in line.toolTip()


def test_in_large_type_the_results_of_low_docks_are_not_cut_off(qtbot, large_type):
    large_type.resize(800, 500)
    large_type.dock_area.proportion()
    session = large_type.workspace.session
    session.shown = Session(
        studies=[*everything().studies, attribution_samples.study(), profile_samples.study()]
    )
    session.sessionChanged.emit()
    for name in ("claims", "breakdown", "optimize"):
        large_type.dock_area.bring(name)
        line = large_type.lazy_panel(name).panel().headline
        qtbot.waitUntil(lambda line=line: bool(line.text()) and line.isVisible())
        qtbot.waitUntil(lambda line=line: line.height() >= line.heightForWidth(line.width()))


def test_in_large_type_the_lines_of_a_sweeps_form_lie_below_each_other(
    qtbot, complete_window, large_type
):
    large_type.resize(800, 500)
    large_type.dock_area.bring("sweep")
    panel = large_type.sweep
    controls = [*panel.arms.values(), panel.status, *panel.values, panel.run, panel.seconds]

    def are_apart() -> bool:
        areas = [control.geometry() for control in controls]
        return panel.run.font().pointSizeF() == 14 and not any(
            a.intersects(b) for a, b in combinations(areas, 2)
        )

    qtbot.waitUntil(are_apart)
