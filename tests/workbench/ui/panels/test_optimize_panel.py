"""The panel of the best configuration: what is requested, shown, applied and saved."""

from __future__ import annotations

import dataclasses

import numpy as np
import optimization_samples
import pytest
from optimization_samples import RESULT
from PySide6.QtCore import Qt

from sessions.model import Session
from sessions.numbers import text
from sessions.studies.optimization.words import headline, remarks, verdicts_table
from workbench import protocol
from workbench.plot_export import export_plot
from workbench.plots import PLOTS, Run
from workbench.plots.pareto import difference_words


@pytest.fixture
def panel(qtbot, ready):
    """The panel in front, ready to search."""
    ready.search()
    qtbot.waitUntil(ready.optimize.run.isEnabled)
    return ready.optimize


def cells(table) -> list[list[str]]:
    return [
        [table.item(row, column).text() for column in range(table.columnCount())]
        for row in range(table.rowCount())
    ]


def belong_to(study, configuration) -> None:
    """Let the study be one of the configuration's model."""
    named = {"family": configuration.family, "workload": configuration.workload}
    study.request.update(named)


def test_the_controls_of_the_form_have_the_same_edges(panel):
    edges = {
        (control.geometry().left(), control.geometry().right())
        for control in (panel.objective, panel.toggles, panel.run)
    }
    assert len(edges) == 1


def test_goal_limit_budget_and_toggles_of_the_form_are_sent(panel, ready, monkeypatch):
    commands = []
    monkeypatch.setattr(
        ready.workspace.measurements, "perform", lambda command, *_: commands.append(command)
    )
    panel.objective.setCurrentIndex(panel.objective.findData("memory"))
    panel.limit.setValue(12.5)
    panel.budget.setValue(90)
    searched = {action.data(): action for action in panel.toggles.menu().actions()}
    assert panel.toggles.text().startswith("All toggles")
    assert "window" not in searched, "it makes another model"
    searched["compile"].setChecked(False)
    assert panel.toggles.text().startswith(f"{len(searched) - 1} of {len(searched)}")
    for action in searched.values():
        action.setChecked(False)
    assert "Choose at least one toggle" in panel.why_not.text() and not panel.run.isEnabled()
    for name in searched.keys() - {"compile"}:
        searched[name].setChecked(True)
    panel.run.click()
    (command,) = commands
    assert (
        isinstance(command, protocol.Optimize)
        and command.base == ready.workspace.configuration.edited
    )
    assert (command.objective, command.budget_s) == ("memory", 90.0)
    assert (command.memory_limit, command.exclude) == (12.5 * 2**30, ["compile"])


def test_where_only_the_start_was_measured_nothing_is_claimed_of_others():
    study = optimization_samples.study(gains=False)
    measured = len(study.tables["candidates"]["candidate"]) - 1
    claim = "nothing was shown to be better than the start among {} other configuration{} measured"
    assert headline(study) == claim.format(measured, "s")
    for count, words in ((2, claim.format(1, "")), (1, "only the start was measured")):
        tables = {name: {c: v[:count] for c, v in t.items()} for name, t in study.tables.items()}
        assert headline(dataclasses.replace(study, tables=tables)) == words


def test_options_of_the_result_that_were_not_shown_to_help_are_named():
    study = optimization_samples.study()
    effects = {name: np.array(column) for name, column in study.tables["effects"].items()}
    study.tables["effects"] = effects
    singles = effects["kind"] == "without"
    name = str(effects["name"][singles & (effects["quantity"] == "time")][0])
    assert "Not shown" not in remarks(study)[0], "all of them help"
    own = singles & (effects["name"] == name)
    effects["verdict"][own & (effects["quantity"] == "time")] = "UNDECIDED"
    effects["ratio"][own & (effects["quantity"] == "memory")] = 1.0
    assert f"Not shown to help: {name}. Search" in remarks(study)[0]
    effects["verdict"][own & (effects["quantity"] == "time")] = "SLOWER"
    assert f"Slower with {name} than without. Search" in remarks(study)[0]
    effects["ratio"][own & (effects["quantity"] == "memory")] = 0.9
    assert "Not shown" not in remarks(study)[0], "it saves memory"
    assert "Slower with" not in remarks(study)[0]
    effects["ratio"][own & (effects["quantity"] == "memory")] = 1.0
    effects["verdict"][own & (effects["quantity"] == "time")] = ""  # another option needs it
    assert "Not shown" not in remarks(study)[0]


def test_a_gain_of_energy_has_its_interval_wherever_it_is_shown():
    study = optimization_samples.study()
    effects = {name: np.asarray(column) for name, column in study.tables["effects"].items()}
    gains = np.flatnonzero((effects["kind"] == "total") & (effects["quantity"] == "time"))
    added = {name: column[gains] for name, column in effects.items()} | {
        "quantity": np.array(["energy"]), "ratio": np.array([0.97]), "low": np.array([0.9]),
        "high": np.array([1.04]), "verdict": np.array(["UNDECIDED"]),
    }  # fmt: skip
    columns = {name: np.concatenate([effects[name], added[name]]) for name in effects}
    study.tables["effects"], study.request["objective"] = columns, "energy"
    assert "0.97 x the start's energy (95 % interval 0.90 to 1.04), undecided" in headline(study)
    table = verdicts_table(study)
    names = [column.name for column in table.columns]
    assert names[-4:-1] == ["energy ratio", "energy from", "energy to"]
    assert [text(cell) for cell in table.rows[0][-4:-1]] == ["0.97", "0.90", "1.04"]


def test_a_search_comes_live_and_its_result_is_applied_undone_and_saved(qtbot, panel, ready):
    workspace = ready.workspace
    qtbot.mouseClick(panel.run, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: panel.headline.text().endswith("against the start"))
    qtbot.waitUntil(panel.run.isEnabled)
    assert "x faster (95 % interval" in panel.headline.text()
    assert "Precision: AMP BF16" in panel.best.text() not in panel.headline.text()
    assert "Search complete" in panel.about.text() and "pays off after" in panel.about.text()
    assert "none from the search" in panel.details.text() and not panel.details.isVisible()
    assert panel.chart.reason is None
    best = next(row for row in cells(panel.candidates) if row[1] == "best")
    assert "Precision: AMP BF16" in best[0], "by titles"
    verdicts = [row[0] for row in cells(panel.verdicts)]
    assert "best against start" in verdicts
    assert any("needs a CUDA GPU" in cell for row in cells(panel.options) for cell in row)
    belong_to(panel.study, workspace.configuration.edited)
    panel._show()
    before = dict(workspace.configuration.edited.toggles)
    panel.apply.click()
    assert workspace.configuration.edited.toggles["precision"] == "amp_bf16"
    assert workspace.configuration.edited.toggles["adamw"] == "fused"
    workspace.configuration.undo.undo()
    assert workspace.configuration.edited.toggles == before, "one step of undo"
    panel.save.click()
    ((name, toggles),) = workspace.presets.own.items()
    assert name.startswith("Best ") and toggles["compile"] == "default"
    panel.save.click()
    assert list(workspace.presets.own) == [name, f"{name} 2"]


def test_the_selected_configuration_is_applied_unless_it_is_wrong_or_of_another_model(
    qtbot, panel, ready
):
    workspace = ready.workspace
    workspace.session.shown.studies.append(optimization_samples.study())
    workspace.session.studiesChanged.emit()
    qtbot.waitUntil(lambda: panel.candidates.rowCount() > 3)
    assert "first choose" in panel.apply.toolTip()
    configuration = workspace.configuration.edited
    belong_to(panel.study, configuration)
    rows = [row[0] for row in cells(panel.candidates)]
    panel.candidates.selectRow(
        next(n for n, title in enumerate(rows) if "Shared RoPE cache" in title)
    )
    assert panel.apply.toolTip() == "Its numbers are wrong." and not panel.apply.isEnabled()
    panel.study.request["start"].append("gone=off")  # as of another version
    panel.candidates.selectRow(next(n for n, title in enumerate(rows) if title == "AdamW: Foreach"))
    panel.apply.click()
    assert workspace.configuration.edited.toggles["adamw"] == "foreach"
    qtbot.waitUntil(lambda: panel.apply.toolTip() == "It is chosen already.", timeout=5000)
    assert not panel.apply.isEnabled()
    workspace.configuration.undo.undo()
    qtbot.waitUntil(panel.apply.isEnabled, timeout=5000)
    workspace.configuration.undo.redo()
    assert workspace.configuration.edited.toggles["precision"] == configuration.toggles["precision"]


@pytest.mark.parametrize("in_another_session", [True, False])
def test_of_another_optimization_the_best_configuration_is_applied_until_one_is_selected(
    qtbot, panel, ready, in_another_session
):
    session = ready.workspace.session
    session.show(Session(studies=[optimization_samples.study()]))
    qtbot.waitUntil(lambda: panel.candidates.rowCount() > 3)
    best = panel.chosen.text()
    panel.candidates.selectRow(1)
    assert panel.chosen.text() == panel.candidates.item(1, 0).text() != best == ""
    session.studiesChanged.emit()  # the same optimization with another row
    panel._show()
    assert panel.chosen.text() == panel.candidates.item(1, 0).text()
    if in_another_session:
        session.show(Session(studies=[optimization_samples.study()]))
    else:
        session.shown.studies.append(optimization_samples.study())
        panel._show()
    assert panel.chosen.text() == best and not panel.candidates.selectedItems()


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("suffix", [".svg", ".csv"])
def test_the_front_is_drawn_and_exported_against_memory_or_error(qapp, tmp_path, memory, suffix):
    study = optimization_samples.study(memory=memory)
    run = Run(Session(studies=[study]))
    known = PLOTS["pareto"].choices([run])["against"]
    assert known == (("memory", "error") if memory else ("error",))
    path = export_plot("pareto", [run], tmp_path / f"front{suffix}")
    text = path.read_text()
    assert (RESULT.split(",")[0] in text) == (suffix == ".csv" or "precision" in text)
    assert ("peak_bytes" in text) == (memory and suffix == ".csv")


@pytest.mark.parametrize("reason", ["", "its numbers are wrong"])
def test_the_legend_explains_the_marks_that_are_drawn_and_no_others(qapp, tmp_path, reason):
    study = optimization_samples.study()
    candidates = study.tables["candidates"]
    candidates["reason"] = [reason] * len(candidates["candidate"])
    run = Run(Session(studies=[study]))
    texts = export_plot("pareto", [run], tmp_path / "front.svg").read_text()
    marks = ("Pareto front", "other configurations", "cannot be proposed")
    assert [mark in texts for mark in marks] == [True, not reason, bool(reason)]


def test_a_point_of_the_front_is_named_by_how_it_differs_from_the_best():
    best = {"candidate": 3, "title": "a=1, b=2"}
    assert difference_words({"candidate": 4, "title": "a=1, c=3"}, best) == "best, c=3, without b=2"
    assert difference_words(best, best) == "best"
    assert difference_words({"candidate": 0, "title": "start"}, best) == "start"


def test_without_an_optimization_the_plot_says_what_makes_one():
    assert "workbench optimize" in PLOTS["pareto"].can_show([Run(Session())])
