"""Marks of background pairing on the time axis."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from synthetic import comparison, gpu_session

from sessions.exports import exportable
from sessions.model import Configuration, PairedComparison, Phase, PhaseSpan, Segment, Session
from sessions.storage import content
from sessions.verdicts.background import BACKGROUND, baselines
from workbench import plot_export
from workbench.charts.style import screen_style
from workbench.plots import PLOTS, Run
from workbench.plots._pairing import BlockSpans, Pairing
from workbench.plots._segments import alternating
from workbench.theming.theme import LIGHT


def steps_between(start_s, stop_s):
    """When steps of 10 ms begin."""
    return np.arange(round(100 * start_s), round(100 * stop_s)) / 100


def segment(index, start_s, stop_s, blocks=()):
    """Return steps of 10 ms, and (number, begin, end) of blocks."""
    numbers, times = [], []
    for at in steps_between(start_s, stop_s):
        inside = [number for number, begin, end in blocks if begin <= at < end]
        numbers.append(inside[0] if inside else 0)
        times.append(at)
    for number, begin, end in blocks:
        if begin >= stop_s:
            late = steps_between(begin, end)
            times += list(late)
            numbers += [number] * len(late)
    made = Segment(
        index=index,
        configuration=Configuration(family="hydra", preset="tiny"),
        label=f"segment {index}",
        start_s=start_s,
        phases=[PhaseSpan(Phase.STEADY, start_s, stop_s)],
    )
    count = len(times)
    made.steps.append(
        {"t_s": np.array(times), "wall_ms": np.full(count, 10.0), "gpu_ms": np.full(count, np.nan),
         "phase": np.full(count, Phase.STEADY), "block": np.array(numbers)}
    )  # fmt: skip
    return made


@pytest.fixture
def session():
    """Two segments; the first has a block beside each of the second's two."""
    made = Session()
    made.segments = [
        segment(0, 0.0, 2.0, [(1, 3.0, 3.2), (4, 5.2, 5.4)]),
        segment(1, 2.0, 8.0, [(2, 3.2, 3.4), (3, 5.0, 5.2)]),
    ]
    made.comparisons = [
        PairedComparison(
            arms=["A", "B"], order=[0, 1, 1, 0], medians_ms=[10.0] * 4, ratio=1.0, low=math.nan,
            high=math.nan, verdict="UNDECIDED", facts={"segments": [0, 1], BACKGROUND: True},
        )
    ]  # fmt: skip
    return made


def test_each_block_is_marked_where_it_ran_and_the_legend_names_it(session):
    marks = Pairing(Run(session), screen_style(LIGHT))
    marks.pull()
    assert [(round(a, 2), round(b, 2)) for a, b in marks._spans] == [
        (3.0, 3.2), (3.2, 3.4), (5.0, 5.2), (5.2, 5.4),
    ]  # fmt: skip
    (entry,) = marks.entries()
    assert (entry.name, entry.mark) == ("pairing", "patch")


def test_a_requested_comparison_is_not_marked_as_pairing(session):
    session.comparisons[0].facts.pop(BACKGROUND)
    marks = Pairing(Run(session), screen_style(LIGHT))
    marks.pull()
    assert not marks._spans and not marks.entries()


def test_blocks_in_the_background_do_not_make_segments_run_by_turns(session):
    assert alternating(Run(session)) == set()
    session.comparisons.clear()
    assert alternating(Run(session)) == {0, 1}


def test_spans_take_in_only_what_is_new(session):
    live = session.segments[1]
    spans = BlockSpans(live)
    spans.pull()
    known = list(spans.spans)
    live.steps.append(
        {"t_s": np.array([8.0, 8.01, 8.02]), "wall_ms": np.full(3, 10.0),
         "gpu_ms": np.full(3, np.nan), "phase": np.full(3, 5), "block": np.array([0, 5, 5])}
    )  # fmt: skip
    spans.pull()
    assert spans.spans[: len(known)] == known
    assert [round(at, 2) for at in spans.spans[-1]] == [8.01, 8.03]


def test_a_background_comparison_without_its_segments_is_drawn_and_listed_without_them():
    """A file may lack them: the fact is optional."""
    session = gpu_session(2, 60)
    lacking = comparison(0)
    facts = {BACKGROUND: True}
    session.comparisons = [msgspec.structs.replace(lacking, facts=facts)]
    assert content.cleaned(session).comparisons[0].facts == facts
    assert baselines(session) == set()
    for name in ("step_time", "verdict"):
        plot_export.plot_svg(PLOTS[name], [Run(session)])
    assert exportable(session)
