"""A plot's layout comes to rest: a loop of it would take a core, beside what is measured."""

import pytest
from synthetic import gpu_session

from sessions.model import Event
from workbench.plots import PLOTS, Run
from workbench.theming.theme import DARK
from workbench.ui.panels._chart import Chart


@pytest.fixture
def chart(qtbot, tasks):
    """Return a plot with more labels of marks than a row holds, and a list of its resizes."""
    session = gpu_session(2, 300)
    for number in range(9):
        session.events.append(Event(1.0 + 0.1 * number, "note", f"what happened, number {number}"))
    chart = Chart(PLOTS["step_time"], DARK, tasks)
    qtbot.addWidget(chart)
    chart.readings = True
    chart.resize(700, 400)
    chart.show()
    chart.show_runs([Run(session)])
    chart.resizes = []
    chart.canvas.vb.sigResized.connect(chart.resizes.append)
    return chart


def test_at_no_height_does_the_layout_chase_itself(qtbot, chart):
    rows = set()
    for height in range(120, 260, 3):
        chart.resize(700, height)
        qtbot.wait(10)
        chart.resizes.clear()
        qtbot.wait(20)
        assert not chart.resizes, f"{len(chart.resizes)} more in 20 ms, {height} px high"
        rows.add(max(row for _, _, row, text, _ in chart.canvas.lane._labels if text))
    assert rows == {0, 1}, "a low plot has labels in one row, a higher one in two"


def test_a_plot_has_as_many_rows_of_labels_whichever_height_it_had_before(qtbot, chart):
    def rows(height):
        chart.resize(700, height)
        qtbot.wait(10)
        return chart.canvas.lane.size().height()

    heights = range(120, 260, 4)
    growing = [rows(height) for height in heights]
    assert [rows(height) for height in reversed(heights)] == growing[::-1]
    assert len(set(growing)) == 2
