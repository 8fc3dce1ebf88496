"""Segments that ran by turns, as the arms of a comparison do, are told apart over time too."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtGui import QColor, QImage, QPainter
from synthetic import cpu_session, gpu_session

from sessions.columns import Columns
from sessions.model import STEP_COLUMNS, Session
from workbench import plot_export
from workbench.charts import runs
from workbench.charts.layers.frame import Frame
from workbench.charts.style import paper_style
from workbench.plots import PLOTS, Run
from workbench.plots._segments import Segments, alternating
from workbench.plots._steps import series
from workbench.theming.theme import DARK, PRINT
from workbench.ui.panels._chart import Chart

OVER_TIME = ("step_time", "throughput")


def by_turns(session: Session) -> Session:
    """Return the last two segments in blocks of twenty steps, one after the other."""
    arms = session.segments[-2:]
    order = np.argsort(np.concatenate([np.arange(len(arm.steps["t_s"])) // 20 for arm in arms]),
                       kind="stable")  # fmt: skip
    times = np.sort(np.concatenate([arm.steps["t_s"] for arm in arms]))
    order_of_steps = np.argsort(order)
    first = len(arms[0].steps["t_s"])
    for arm, places in zip(arms, (order_of_steps[:first], order_of_steps[first:]), strict=True):
        steps = Columns(STEP_COLUMNS)
        steps.append({name: arm.steps[name] for name in STEP_COLUMNS} | {"t_s": times[places]})
        arm.steps = steps
    return session


def has_color(name: str, run: Run, color: str) -> bool:
    """Return True if the plot's image has a colour somewhere."""
    image = plot_export.plot_image(PLOTS[name], [run]).convertToFormat(QImage.Format.Format_RGB32)
    pixels = np.frombuffer(image.constBits(), np.uint32).reshape(image.height(), -1)
    return bool((pixels & 0xFFFFFF == QColor(color).rgb() & 0xFFFFFF)[200:].any())


def names(canvas) -> list[str]:
    return [entry.name for entry in canvas.entries() if entry.mark != "patch"]


@pytest.mark.parametrize("make", [lambda: gpu_session(2, 200), lambda: cpu_session(200)])
@pytest.mark.parametrize("name", OVER_TIME)
def test_each_has_its_own_color_as_in_the_tables(make, name):
    run = Run(by_turns(make()))
    last = run.session.segments[-1]
    assert alternating(run) == {last.index - 1, last.index}
    for index in alternating(run):
        assert has_color(name, run, PRINT.series[index])
    assert not has_color(name, run, PRINT.series[last.index + 1])


@pytest.mark.parametrize("name", OVER_TIME)
def test_those_that_followed_one_another_are_one_line(name):
    run = Run(gpu_session(2, 200))
    assert not alternating(run)
    assert has_color(name, run, PRINT.series[0])
    assert not has_color(name, run, PRINT.series[1])


@pytest.mark.parametrize("name", OVER_TIME)
def test_the_legend_names_them_once_they_do(qtbot, name, tasks):
    """A comparison may begin while the plot is shown."""
    session = gpu_session(2, 200, labels=("A: defaults", "B: Triton"))
    chart = Chart(PLOTS[name], DARK, tasks)
    qtbot.addWidget(chart)
    chart.resize(900, 400)
    chart.show_runs([Run(session)])
    assert names(chart.canvas) == ["steps", "5–95 %", "median of 41"]
    by_turns(session)
    chart.renew()
    assert names(chart.canvas) == ["A: defaults", "B: Triton"]


@pytest.mark.parametrize("name", [*OVER_TIME, "ecdf", "box"])
def test_segments_are_called_by_titles_in_every_chart(qtbot, name, tasks):
    session = by_turns(gpu_session(2, 200, labels=("A: adamw=loop", "B: adamw=fused")))
    chart = Chart(PLOTS[name], DARK, tasks)
    qtbot.addWidget(chart)
    chart.resize(900, 400)
    chart.show_runs([Run(session, titled=lambda text: text.replace("adamw=", "AdamW: "))])
    labels = [label for _, label in chart.canvas.axis("left").categories or ()]
    assert (labels or names(chart.canvas)) == ["A: AdamW: loop", "B: AdamW: fused"]


def test_none_of_them_is_said_to_have_had_the_time_to_itself(qapp):
    """The strip along the top would give all of a comparison to B."""
    session = by_turns(gpu_session(3, 200))
    strip = Segments(Run(session), paper_style(PRINT))
    strip.pull()
    axis = Run(session).axis
    end = axis.position(float(session.segments[2].steps["t_s"][-1]))
    image = QImage(400, 20, QImage.Format.Format_RGB32)
    image.fill(0xFFFFFFFF)
    painter = QPainter(image)
    strip.frame = Frame((0.0, end), (0.0, 1.0), 400.0, 20.0)
    strip.draw(painter, strip.frame)
    painter.end()
    first = session.segments[0]
    own = 400 * axis.position(float(first.steps["t_s"][-1])) / end
    assert image.pixelColor(int(own) - 2, 1).name() == PRINT.series[0].lower()
    later = 400 * axis.position(session.segments[1].start_s + 0.1) / end
    assert image.pixelColor(int(later) + 2, 1).name() == "#ffffff"
    assert image.pixelColor(390, 1).name() == "#ffffff"


def test_between_two_runs_the_strip_is_no_ones(qapp):
    """An hour between them was drawn as if the first had gone on until the second began."""
    session = gpu_session(2, 200)
    first, second = session.segments
    ended = first.phases[-1].stop_s
    second.start_s = ended + 60.0
    second.steps["t_s"][:] += 60.0
    second.phases = []
    strip = Segments(Run(session), paper_style(PRINT))
    strip.pull()
    (_, _, stop), (_, start, _) = strip._spans
    assert stop == start == pytest.approx(ended - first.start_s)
    assert Run(session).axis.gaps == [(stop, pytest.approx(second.start_s - ended))]


def test_while_a_run_goes_on_the_strip_has_no_gap(qapp):
    session = gpu_session(3, 200)
    strip = Segments(Run(session), paper_style(PRINT))
    strip.pull()
    stops = [stop for _, _, stop in strip._spans]
    starts = [start for _, start, _ in strip._spans]
    assert stops[:-1] == starts[1:]


def test_segments_that_alternate_are_limited_and_hidden_as_others_are(monkeypatch):
    """Each has layers of its own: 10,000 segments blocked the window for 20 s."""
    run = Run(by_turns(gpu_session(4, 200)))
    last = run.session.segments[-1].index
    assert {segment.segments for segment in series([run])} >= {(0,), (last,)}
    visible = series([run.changed(hidden=frozenset({0, last}))])
    assert {segment.segments for segment in visible}.isdisjoint({(0,), (last,)})
    monkeypatch.setattr(runs, "MOST_SEGMENTS", 2)
    assert [segment.segments for segment in series([run])] == [(last - 1,), (last,)]
