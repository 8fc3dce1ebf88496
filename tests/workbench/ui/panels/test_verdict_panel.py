"""The verdict panel and its actions: offered after a toggle, live, measured on, stopped."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import pytest
from fake_session import messages, session
from PySide6.QtCore import Qt
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QLabel, QToolButton

from sessions.model import Order, Session, Study
from sessions.numbers import margin_text
from sessions.verdicts.verdict_words import interim_headline
from workbench import calibration, protocol
from workbench.calibration import Calibration
from workbench.charts.style import Style
from workbench.client.recorder import Recorder
from workbench.plot_export import export_plot
from workbench.plots import PLOTS, Run
from workbench.plots._narrowing import Same, hatch
from workbench.theming.theme import DARK
from workbench.titles import Titles
from workbench.ui.menus.palette_entries import list_entries
from workbench.ui.panels import _verdict_lines as verdict_lines
from workbench.ui.panels._chart import Chart
from workbench.ui.panels._table_view import TableView
from workbench.ui.state import config_edit


def texts(panel) -> str:
    return "\n".join(label.text() for label in panel.findChildren(QLabel))


def run_once(qtbot, window):
    window.workspace.runs.start()
    qtbot.waitUntil(lambda: len(window.workspace.session.shown.segments) == 1)
    qtbot.waitUntil(lambda: window.workspace.run.state == "running")


@pytest.fixture
def compared() -> Session:
    """A finished sitting that ends with a comparison whose second arm computes wrong numbers."""
    recorder = Recorder(Session(title="compared"))
    for message in messages("verdict"):
        recorder.record(message)
    return recorder.session


@pytest.fixture
def changed(qtbot, ready):
    """The window with a run in progress, a toggle of which was changed."""
    run_once(qtbot, ready)
    ready.workspace.configuration.set_toggle("triton", "on")
    qtbot.waitUntil(lambda: len(ready.workspace.session.shown.segments) == 2)
    return ready


def test_numbers_that_nobody_checked_are_amber_and_no_verdict_is_green(compared):
    (comparison,) = compared.comparisons
    why = "not checked: Out of memory: 2.00 GiB more was needed."
    right = {**comparison.facts["numerics"]["0"], "ok": True}
    for arms, tone in (((right, right), "good"), ((right, {"ok": None, "text": why}), "warning")):
        numerics = {str(n): {"reference": "", **facts} for n, facts in enumerate(arms)}
        facts = {**comparison.facts, "numerics": numerics}
        made = msgspec.structs.replace(comparison, verdict="FASTER", facts=facts)
        assert verdict_lines.tone(made) == tone
        lines = [
            line for line in verdict_lines.troubles(made, [], Titles()) if "numbers" in line[0]
        ]
        expected = [(f"B: numbers {why}", "unknown", "warning")] if tone == "warning" else []
        assert lines == expected


def test_without_a_comparison_the_panel_says_what_would_fill_it(ready):
    assert ready.verdict.empty.isVisibleTo(ready.verdict)
    assert "change a toggle" in texts(ready.verdict)
    action = ready.actions_["verdict"]
    assert not action.isEnabled()
    assert "No other configuration has run yet" in action.toolTip()


def test_a_changed_toggle_offers_the_verdict_against_before(changed):
    action = changed.actions_["verdict"]
    assert action.isEnabled()
    entry = next(
        entry
        for entry in list_entries(changed, changed.actions_)
        if entry.text.startswith("Verdict")
    )
    assert not entry.why_not
    before = changed.workspace.verdicts.before()
    assert before.toggles["triton"] == "off"


@pytest.mark.parametrize(("kind", "claims"), [("validate", None), ("start", 0)])
def test_a_variant_that_a_study_made_is_not_the_configuration_before(changed, kind, claims):
    verdicts, session = changed.workspace.verdicts, changed.workspace.session.recorder.session
    before, last = verdicts.before(), session.segments[-1]
    count = len(session.segments)
    batch_3 = msgspec.structs.replace(last.configuration, settings={"batch": 3})
    session.studies += [Study("claims", "claims of a document", 1e6)] * (claims is not None)
    order = Order(start_s=1e6, command={"type": kind}, segments=count, claims=claims)
    session.orders.append(order)
    session.segments.append(dataclasses.replace(last, index=count, configuration=batch_3))
    assert verdicts.before() == before


def test_a_comparison_without_a_ratio_has_no_verdict_yet(judged):
    comparison = judged.comparisons[0]
    begun = msgspec.structs.replace(comparison, ratio=math.nan, verdict="UNDECIDED")
    begun.facts["numerics"] = {}
    assert interim_headline(begun) == "Measuring"
    assert interim_headline(comparison).startswith("Measuring: ")


def test_a_verdict_comes_live_and_is_shown_in_words(qtbot, changed, hold):
    workspace, panel = changed.workspace, changed.verdict
    hold.touch()
    changed.actions_["verdict"].trigger()
    qtbot.waitUntil(lambda: panel.headline.text().startswith("Measuring: "))
    assert not panel.more.isEnabled()
    hold.unlink()
    qtbot.waitUntil(lambda: not workspace.verdicts.busy)
    text = "B computed wrong numbers; by time: B is FASTER than A"
    qtbot.waitUntil(lambda: panel.headline.text() == text)
    assert panel.headline.property("tone") == "bad"
    assert panel.ratio.text().startswith("B against A: 1.2")
    assert "x faster (95 % interval 1.2" in panel.ratio.text()
    assert ", 12 pairs in" in panel.ratio.text()
    shown = texts(panel)
    assert "Numbers right against float64" in shown and "Numbers WRONG against float64" in shown
    assert "oid and not counted: 2 of 26 blocks" in shown
    buttons = panel.findChildren(QToolButton)
    details = next(button for button in buttons if button.text() == "Details")
    details.setChecked(True)
    errors = next(view for view in panel.findChildren(TableView) if view.isVisibleTo(panel))
    assert [column.name for column in errors.table.columns] == ["arm", "error", "measured", "limit"]
    assert {row[0] for row in errors.table.rows} == {"A", "B"}
    (comparison,) = workspace.session.shown.comparisons
    base, other = (
        workspace.session.shown.segments[index] for index in comparison.facts["segments"]
    )
    assert base.configuration.toggles["triton"] == "off"
    assert other.configuration.toggles["triton"] == "on"
    qtbot.waitUntil(lambda: workspace.run.state == "running")
    assert workspace.run.running == other.configuration  # the run that was interrupted goes on


def test_what_is_chosen_meanwhile_for_another_workload_is_not_what_goes_on(qtbot, changed, hold):
    workspace = changed.workspace
    ran = workspace.run.running
    hold.touch()
    changed.actions_["verdict"].trigger()
    qtbot.waitUntil(lambda: bool(workspace.session.shown.comparisons))
    workspace.configuration.edit(
        config_edit.with_workload(
            workspace.configuration.catalogue, workspace.configuration.edited, "forward"
        )
    )
    workspace.configuration.set_toggle("adamw", "fused")
    hold.unlink()
    qtbot.waitUntil(lambda: not workspace.verdicts.busy)
    qtbot.waitUntil(lambda: workspace.run.state == "running")
    assert workspace.run.running == ran
    assert (workspace.configuration.edited.workload, workspace.configuration.pending) == (
        "forward",
        {},
    )


def test_measuring_on_adds_to_the_comparison(qtbot, changed):
    workspace, panel = changed.workspace, changed.verdict
    changed.actions_["verdict"].trigger()
    qtbot.waitUntil(
        lambda: bool(workspace.session.shown.comparisons) and not workspace.verdicts.busy,
    )
    qtbot.waitUntil(lambda: panel.more.isEnabled() and workspace.run.state == "running")
    qtbot.mouseClick(panel.more, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(
        lambda: (
            workspace.session.shown.comparisons[0].facts.get("pairs") == 24
            and not workspace.verdicts.busy
        ),
    )
    assert len(workspace.session.shown.comparisons) == 1


def test_a_comparison_can_be_stopped_and_keeps_its_blocks(qtbot, changed, hold):
    workspace = changed.workspace
    hold.touch()
    changed.actions_["verdict"].trigger()
    qtbot.waitUntil(
        lambda: (
            bool(workspace.session.shown.comparisons)
            and len(workspace.session.shown.comparisons[0].order) > 2
        ),
    )
    changed.actions_["stop"].trigger()
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    comparison = workspace.session.shown.comparisons[0]
    assert 2 < len(comparison.order) < 26 and not comparison.facts.get("final")
    assert changed.actions_["measure-more"].isEnabled()
    assert not workspace.session.saved
    workspace.runs.start()
    qtbot.waitUntil(lambda: workspace.run.state == "running")
    assert not workspace.verdicts.measuring


def test_the_budget_and_the_machines_floor_are_what_the_runner_is_asked_for(
    qtbot, changed, monkeypatch
):
    workspace = changed.workspace
    calibration.store(
        Calibration(
            device=workspace.configuration.catalogue.device_title,
            software=calibration._software(workspace.configuration.catalogue),
            floor=0.02,
            created=1.7e9,
            pairs=9,
            seconds=3.0,
            measured_with="hydra",
        )
    )
    commands = []
    monkeypatch.setattr(
        workspace.measurements, "perform", lambda command, *_: commands.append(command)
    )
    changed.verdict.budget.setValue(45)
    changed.actions_["verdict"].trigger()
    (command,) = commands
    assert isinstance(command, protocol.Compare)
    assert (command.budget_s, command.floor, command.region) == (45.0, 0.02, 0.01)


def test_a_calibration_compares_the_configuration_with_itself_and_its_floor_is_shown(
    qtbot, changed
):
    workspace, panel = changed.workspace, changed.verdict
    assert "Noise floor not known" in panel.floor.text() or not panel.floor.text()
    changed.actions_["calibrate"].trigger()
    qtbot.waitUntil(lambda: not workspace.verdicts.busy)
    (comparison,) = workspace.session.shown.comparisons
    arms = [
        workspace.session.shown.segments[at].configuration for at in comparison.facts["segments"]
    ]
    assert arms[0] == arms[1]
    (measured,) = calibration.load(workspace.configuration.catalogue)
    assert measured.kind == calibration.kind_of(workspace.configuration.catalogue, arms[0])
    assert measured.floor == pytest.approx(calibration.floor(comparison))
    text = f"Noise floor {margin_text(measured.floor)}, calibrated today"
    qtbot.waitUntil(lambda: panel.floor.text().startswith(text))
    assert any(
        "identical arms differ by up to" in event.text for event in workspace.session.shown.events
    )


def test_a_run_that_ends_by_itself_as_a_comparison_is_asked_for_does_not_go_on(
    qtbot, ready, monkeypatch
):
    workspace, verdicts = ready.workspace, ready.workspace.verdicts
    sent = []
    monkeypatch.setattr(workspace.run, "send", sent.append)
    # Its end was told, but not yet that the runner is idle: no other end comes before our own.
    workspace.run.set_state("running", "")
    verdicts.judge(workspace.configuration.edited, workspace.configuration.edited)
    workspace.run.set_state("idle", "")
    assert verdicts.busy
    workspace.run.set_state("running", "")
    workspace.run.received.emit(protocol.Finished(reason="done", steps=1))
    assert not verdicts.busy and [type(command) for command in sent] == [protocol.Compare]


def test_an_opened_session_shows_its_verdict_and_cannot_be_measured_on(qtbot, ready, compared):
    ready.workspace.session.show(compared)
    panel = ready.verdict
    assert panel.headline.text() == "B computed wrong numbers; by time: UNDECIDED"
    assert not panel.more.isEnabled()
    assert "This session is a file" in panel.more.toolTip()
    assert panel.chart.reason is None


def test_evidence_that_is_being_read_is_not_made_anew_by_what_does_not_change_it(ready, compared):
    panel = ready.verdict
    ready.workspace.session.show(compared)
    labels = panel.findChildren(QLabel)
    panel._show()
    assert panel.findChildren(QLabel) == labels


def test_themes_are_followed(ready, compared):
    from workbench.theming.theme import DARK, LIGHT

    ready.workspace.session.show(compared)
    panel = ready.verdict
    for theme in (LIGHT, DARK):
        ready.workspace.theme.set(theme)
        assert panel.chart._theme is theme


# The plot


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf", ".csv"])
def test_the_plot_is_exported(qapp, tmp_path, compared, suffix):
    path = export_plot("verdict", [Run(compared)], tmp_path / f"verdict{suffix}")
    assert path.stat().st_size > 1000 if suffix != ".csv" else True
    if suffix == ".csv":
        lines = path.read_text().splitlines()
        assert lines[0] == "pair,ratio,ratio_cycles" and len(lines) == 27


def test_hatching_and_interval_are_painted_where_they_belong(qapp, tmp_path, compared):
    def ink(**changes) -> int:
        comparison = compared.comparisons[0]
        compared.comparisons[0] = msgspec.structs.replace(comparison, **changes)
        path = export_plot("verdict", [Run(compared)], tmp_path / "one.png")
        compared.comparisons[0] = comparison
        image = QImage(str(path))
        warning = sum(
            1
            for x in range(0, image.width(), 2)
            for y in range(image.height() // 3, 2 * image.height() // 3, 4)
            if (color := image.pixelColor(x, y)).red() > color.blue() + 60
        )
        return warning

    voids = compared.comparisons[0].voids
    assert ink() > ink(voids=[""] * len(voids)) + 50


def test_strokes_of_a_stripe_stay_inside_of_it():
    for line in hatch(10.0, 31.0, 100.0):
        for x, y in ((line.x1(), line.y1()), (line.x2(), line.y2())):
            assert 10 <= x <= 31 and 0 <= y <= 100
    assert len(hatch(10.0, 31.0, 100.0)) > 15


def test_a_session_without_a_comparison_says_so():
    assert "alternating blocks" in PLOTS["verdict"].can_show([Run(session())])


# Several


@pytest.fixture
def several(ready, compared):
    """The panel of a reopened session with two comparisons, the first of which was clear."""
    last = compared.comparisons[0]
    facts = {**last.facts, "numerics": {}, "reasons": [], "p": 1e-7}
    first = msgspec.structs.replace(
        last, ratio=1.12, low=1.11, high=1.13, verdict="SLOWER", facts=facts
    )
    compared.comparisons.insert(0, first)
    ready.dock_area.bring("verdict")
    ready.workspace.session.show(compared)
    return ready.verdict


@pytest.mark.parametrize("by", ["Enter", "double click"])
def test_a_row_opens_its_comparison_with_interval_chart_and_evidence(qtbot, several, by):
    panel, table = several, several.table
    assert "UNDECIDED" in panel.headline.text() and "Numbers WRONG" in texts(panel)
    table.setCurrentCell(0, 0)
    if by == "Enter":
        qtbot.keyClick(table, Qt.Key.Key_Return)
    else:
        position = table.visualItemRect(table.item(0, 1)).center()
        for click in (qtbot.mouseClick, qtbot.mouseDClick):
            click(table.viewport(), Qt.MouseButton.LeftButton, pos=position)
    assert "SLOWER" in panel.headline.text() and "1.12" in panel.ratio.text()
    assert "Numbers WRONG" not in texts(panel)
    assert panel.chart.runs[0].comparison == 0 and panel.chart.reason is None
    assert panel.more.toolTip() == "Only the newest comparison can be extended."
    assert "shown above" in table.item(0, 0).toolTip()
    table.cellActivated.emit(1, 0)
    assert "UNDECIDED" in panel.headline.text()


def test_what_is_compared_next_takes_the_place_of_an_older_one_that_was_opened(several, compared):
    several.table.cellActivated.emit(0, 0)
    assert "SLOWER" in several.headline.text()
    compared.comparisons.append(compared.comparisons[1])
    several._session.comparisonsChanged.emit()
    several._show()
    assert "UNDECIDED" in several.headline.text()


@pytest.mark.parametrize(("region", "text"), [(0.0005, "0.05"), (0.0025, "0.25"), (0.01, "1")])
def test_the_region_of_the_same_is_told_as_it_was_asked_for(region, text):
    (entry,) = Same(region, Style(DARK)).entries()
    assert entry.name == f"the same: ±{text} %"


@pytest.mark.parametrize("use", ["export_plot", "copy_plot"])
def test_the_plot_in_front_is_exported_and_copied(qtbot, ready, judged, monkeypatch, use):
    used = []
    for name in ("export_plot", "copy_image"):
        monkeypatch.setattr(Chart, name, lambda chart: used.append(chart.plot.name))
        monkeypatch.setattr(ready.live, name, lambda: used.append("live"), raising=False)
    ready.resize(1600, 1000)
    ready.workspace.session.sessionChanged.emit()
    ready.workspace.session.comparisonsChanged.emit()
    ready.dock_area.bring("verdict")
    chart = ready.verdict.chart
    qtbot.waitUntil(lambda: chart.is_seen() and chart.reason is None)
    getattr(ready, use)()
    monkeypatch.setattr(Chart, "reason", "Nothing to draw.")
    getattr(ready, use)()
    monkeypatch.setattr(Chart, "reason", None)
    ready.dock_area.bring("live")
    qtbot.waitUntil(lambda: not chart.is_seen())
    getattr(ready, use)()
    Chart(PLOTS["step_time"], DARK, ready.workspace.tasks, ready.live)
    monkeypatch.setattr(Chart, "is_seen", lambda chart: True)
    getattr(ready, use)()
    assert used == ["verdict", "live", "live", "live"]
