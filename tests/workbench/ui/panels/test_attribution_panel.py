"""The attribution panel: what may be asked, what is asked, and what comes of it, live."""

from __future__ import annotations

import attribution_samples
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QLabel

from sessions.model import Session
from workbench import protocol
from workbench.plot_export import export_plot
from workbench.plots import PLOTS, Run
from workbench.plots._waterfall import waterfall


def texts(panel) -> str:
    return "\n".join(label.text() for label in panel.findChildren(QLabel))


def cells(table) -> list[list[str]]:
    return [
        [table.item(row, column).text() for column in range(table.columnCount())]
        for row in range(table.rowCount())
    ]


@pytest.fixture
def switched(qtbot, ready):
    """The window with some optimizations switched on, and the panel that shows them."""
    ready.attribute()
    for name, option in (("precision", "amp_bf16"), ("triton", "on"), ("adamw", "fused")):
        ready.workspace.configuration.set_toggle(name, option)
    panel = ready.attribution
    qtbot.waitUntil(lambda: {"precision", "triton", "adamw"} <= set(panel.boxes))
    qtbot.waitUntil(panel.run.isEnabled)
    return ready


def test_with_everything_off_the_panel_says_what_would_fill_it(qtbot, ready):
    panel = ready.attribution
    eager = {t.name: t.options[0].name for t in ready.workspace.configuration.catalogue.toggles}
    ready.workspace.configuration.choose(eager, "Eager")
    qtbot.waitUntil(lambda: not panel.boxes)
    assert panel.empty.isVisibleTo(panel) and "tick those to measure" in texts(panel)
    assert not panel.run.isEnabled()
    assert panel.run.toolTip() == "Switch at least one toggle on, and tick it here."


def test_the_toggles_that_are_ticked_are_asked_for_and_off_in_the_base(switched, monkeypatch):
    workspace, panel = switched.workspace, switched.attribution
    commands = []
    monkeypatch.setattr(
        workspace.measurements, "perform", lambda command, *_: commands.append(command)
    )
    panel.boxes["triton"].setChecked(False)
    panel.mode.setCurrentIndex(panel.mode.findData("leave-one-out"))
    panel.budget.setValue(90)
    panel.run.click()
    (command,) = commands
    assert isinstance(command, protocol.Attribute)
    assert (command.mode, command.budget_s) == ("leave-one-out", 90.0)
    assert command.toggles["precision"] == "amp_bf16" and "triton" not in command.toggles
    order = [t.name for t in workspace.configuration.catalogue.toggles if t.name in command.toggles]
    assert list(command.toggles) == order
    off = {t.name: t.options[0].name for t in workspace.configuration.catalogue.toggles}
    for name in command.toggles:
        assert command.base.toggles[name] == off[name]
    assert command.base.toggles["triton"] == "on"


def test_a_ladder_adds_the_toggles_in_the_order_that_a_person_gives_them(switched, monkeypatch):
    workspace, panel = switched.workspace, switched.attribution
    commands = []
    monkeypatch.setattr(
        workspace.measurements, "perform", lambda command, *_: commands.append(command)
    )
    before = list(panel.boxes)
    first, last = before[0], before[-1]
    assert not panel.movers[first][0].isEnabled() and not panel.movers[last][1].isEnabled()
    panel.movers[last][0].click()
    panel.movers[first][1].click()
    after = [*before[:-2], last, before[-2]]
    after[0], after[1] = after[1], after[0]
    assert list(panel.boxes) == after and "earlier" in panel.movers[first][0].accessibleName()
    panel.run.click()
    assert list(commands[0].toggles) == after


def test_more_toggles_than_a_factorial_takes_are_refused_with_the_way_out(qtbot, switched):
    switched.workspace.configuration.choose({"checkpointing": "full", "compile": "default"}, "More")
    attributions, panel = switched.workspace.attributions, switched.attribution
    switched.workspace.configuration.choose({"rope_cache": "shared"}, "And more")
    qtbot.waitUntil(lambda: len(attributions.chosen()) > 5)
    panel.mode.setCurrentIndex(panel.mode.findData("factorial"))
    assert "tick at most 5" in panel.why_not.text() and not panel.run.isEnabled()
    panel.mode.setCurrentIndex(panel.mode.findData("shapley"))
    assert "tick at most" not in panel.why_not.text()


def test_an_attribution_comes_live_and_is_shown_in_words_picture_and_numbers(qtbot, switched, hold):
    workspace, panel = switched.workspace, switched.attribution
    hold.touch()
    qtbot.mouseClick(panel.run, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: panel.headline.text().startswith("Measuring: "))
    assert not panel.run.isEnabled()
    hold.unlink()
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    qtbot.waitUntil(lambda: panel.headline.text().startswith("All together: 2.3"))
    assert panel.chart.reason is None
    rows = {row[0]: row for row in cells(panel.table)}
    heads = [panel.table.horizontalHeaderItem(at).text() for at in range(len(rows["all together"]))]
    assert heads == [
        "Toggle",
        "Effect",
        "Time ratio (x step time)",
        "Verdict",
        "Memory ratio",
        "Note",
    ]
    assert rows["Precision: AMP BF16"][1] == "adds" and panel.table.isColumnHidden(1), "as all do"
    assert rows["Precision: AMP BF16"][3:5] == ["FASTER", "0.580"]
    assert " to " in rows["Precision: AMP BF16"][2]
    axis = panel.chart.canvas.axis("left")
    assert "Precision: AMP BF16" in [name for _, name in axis.categories]
    assert "=" not in panel.headline.text() + panel.about.text()
    assert "16 rounds" in panel.about.text()
    assert "Peak memory" not in panel.about.text() and "Peak memory" in panel.method.text()
    assert panel.method.isHidden(), "how it was measured is behind Details"
    assert not workspace.session.saved
    assert panel.run.isEnabled()


def test_an_attribution_that_interrupts_a_run_is_measuring_until_its_own_end(qtbot, switched):
    workspace, panel = switched.workspace, switched.attribution
    switched.actions_["run"].trigger()
    qtbot.waitUntil(lambda: workspace.run.state == "running" and panel.run.isEnabled())
    ended, measuring = [], []

    def note(message):
        if isinstance(message, protocol.Finished):
            ended.append((message.reason, workspace.attributions.why_not()))
        elif isinstance(message, protocol.StudyRows):
            measuring.append(workspace.attributions.measuring)

    workspace.run.received.connect(note)
    panel.run.click()
    qtbot.waitUntil(lambda: len(ended) == 2)
    assert ended[0] == ("stopped", "An attribution is being measured.")
    assert ended[1][0] == "done" and not workspace.attributions.measuring
    assert measuring and all(measuring)
    qtbot.waitUntil(lambda: panel.headline.text().startswith("All together"))


def test_an_attribution_can_be_stopped_and_keeps_its_rounds(qtbot, switched, hold):
    workspace, panel = switched.workspace, switched.attribution
    hold.touch()
    panel.run.click()
    qtbot.waitUntil(lambda: bool(workspace.session.shown.studies))
    qtbot.waitUntil(lambda: "effects" in workspace.session.shown.studies[0].tables)
    switched.actions_["stop"].trigger()
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    assert "final" not in workspace.session.shown.studies[0].facts
    qtbot.waitUntil(lambda: not panel.headline.text().startswith("Measuring"))


# The plot


def run_of(**options) -> Run:
    session = Session(title="attributed")
    session.studies.append(attribution_samples.study(**options))
    return Run(session)


def test_a_ladder_descends_from_the_base_and_ends_at_the_total():
    chart = waterfall(run_of(blocked={"cuda_graphs": "needs a GPU"}).session.studies[0])
    assert chart.names[0] == "base" and chart.names[-2:] == ["cuda_graphs=on", "all together"]
    assert chart.reasons == {4: "blocked: needs a GPU"}
    for quantity in ("time", "memory"):
        base, *steps, total = (bar for bar in chart.bars if bar.quantity == quantity)
        assert (base.start, base.stop) == (0, 1)
        standing = 1.0
        for bar in steps:
            assert bar.start == pytest.approx(standing)
            standing = bar.stop
        assert total.start == 0 and total.stop == pytest.approx(standing)
        exact = [bar.low != bar.low for bar in steps]
        assert all(exact) if quantity == "memory" else not any(exact)


def test_a_rung_out_of_memory_has_a_reason_and_no_bar_and_the_next_goes_on_from_before():
    chart = waterfall(run_of(short=[2]).session.studies[0])
    assert "Out of memory" in chart.reasons[2]
    time = {bar.row: bar for bar in chart.bars if bar.quantity == "time"}
    assert 2 not in time and time[3].start == time[1].stop
    assert chart.names[3] == "precision=amp_bf16 + checkpointing=full"


@pytest.mark.parametrize("mode", ["leave-one-out", "factorial", "shapley"])
def test_without_a_ladder_bars_stand_on_1_and_say_the_ratio(mode):
    chart = waterfall(run_of(mode=mode, memory=False).session.studies[0])
    assert {bar.start for bar in chart.bars} == {1.0}
    assert {bar.quantity for bar in chart.bars} == {"time"}
    compile_ = chart.bars[chart.names.index("compile=default")]
    assert compile_.stop == pytest.approx(0.66, abs=0.03)
    assert compile_.low < compile_.stop < compile_.high
    assert ("compile × precision" in chart.names) == (mode == "factorial")


def test_intervals_are_painted_over_the_bars(qapp, tmp_path):
    def dark(**options) -> int:
        path = export_plot("attribution", [run_of(**options)], tmp_path / "one.png")
        image = QImage(str(path))
        return sum(
            image.pixelColor(x, y).lightness() < 40
            for x in range(image.width() // 3, image.width(), 2)
            for y in range(image.height() // 6, 5 * image.height() // 6, 2)
        )

    assert dark(rounds=8, scatter=0.2, memory=False) > dark(rounds=3, memory=False) + 100


def test_a_session_without_an_attribution_says_so():
    plot = PLOTS["attribution"]
    assert plot.can_show([Run(Session())]) == "No attribution of toggles is in this session."
    empty = run_of(rounds=1, short=[0, 1, 2, 3, 4])
    assert plot.can_show([empty]) == "The attribution has no round that counts yet."


def test_an_attribution_that_measured_nothing_does_not_hide_the_one_before():
    measured = attribution_samples.study(mode="leave-one-out")
    nothing = attribution_samples.study(rounds=1, short=[0, 1, 2, 3, 4])
    run = Run(Session(studies=[measured, nothing]))
    plot = PLOTS["attribution"]
    assert plot.can_show([run]) is None
    alone = plot.table([run.alone(measured)])
    assert alone["toggle"].tolist() == plot.table([run])["toggle"].tolist()
    assert plot.can_show([run.alone(nothing)]) is not None


def test_an_earlier_attribution_is_shown_again_until_there_is_a_newer_one(ready):
    ready.attribute()
    workspace, panel = ready.workspace, ready.attribution
    workspace.session.shown.studies.append(attribution_samples.study(mode="ladder"))
    panel._show()
    assert not panel.which.isVisibleTo(panel)  # nothing to choose from
    ladder = panel.headline.text(), cells(panel.table)
    workspace.session.shown.studies.append(attribution_samples.study(mode="leave-one-out"))
    panel._show()
    assert panel.which.isVisibleTo(panel) and panel.which.count() == 2
    newest = panel.headline.text(), cells(panel.table)
    assert newest != ladder
    panel.which.setCurrentIndex(1)
    panel.which.activated.emit(1)
    assert (panel.headline.text(), cells(panel.table)) == ladder
    panel._show()  # more is heard of the session
    assert (panel.headline.text(), cells(panel.table)) == ladder
    workspace.session.shown.studies.append(attribution_samples.study(mode="leave-one-out"))
    panel._show()
    assert (panel.headline.text(), cells(panel.table)) == newest
