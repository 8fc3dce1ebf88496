"""The plots of scaling over ranks: efficiencies with intervals, and a lane for each rank."""

from __future__ import annotations

import numpy as np
import pytest
import scaling_samples
from test_plots import STYLES, ink, painted

from sessions.model import Session
from workbench.plots import PLOTS, Run, rank_lanes, scaling


def runs(**options) -> list[Run]:
    return [Run(Session(title="scaled", studies=[scaling_samples.study(**options)]))]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", ["scaling", "rank_lanes"])
def test_a_study_leaves_ink_in_every_theme(name, style):
    assert PLOTS[name].can_show(runs()) is None
    image, _ = painted(PLOTS[name], runs(), STYLES[style])
    assert 0.01 < ink(image, STYLES[style].theme.surface) < 0.9


@pytest.mark.parametrize("name", ["scaling", "rank_lanes"])
def test_a_session_without_such_a_study_says_so(name):
    assert "workbench scale" in PLOTS[name].can_show([Run(Session(title="empty"))])


def test_there_is_a_curve_for_each_kind_with_the_intervals_and_the_ideal():
    _, canvas = painted(PLOTS["scaling"], runs(wrong=True), STYLES["dark"])
    curves = [layer for layer in canvas.layers if isinstance(layer, scaling.Efficiency)]
    assert [entry.name for entry in canvas.entries()] == ["data", "fsdp"]
    assert [curve._wrong for curve in curves] == [[False, False], [True, True]]
    low, high = canvas.vb.viewRange()[1]
    for curve in curves:
        assert (low < curve._low).all() and (curve._low < curve._y).all()
        assert (curve._y < curve._high).all()
    assert low < 1 < high
    assert [text for _, text in canvas.axis("bottom").categories] == ["1", "2", "4"]
    table = PLOTS["scaling"].table(runs())
    assert table["ranks"].tolist() == [2, 4, 2, 4]


def test_a_lane_adds_up_to_the_step_and_the_point_can_be_chosen():
    choices = PLOTS["rank_lanes"].choices(runs())["point"]
    assert choices == ("latest", "data, 2 ranks", "data, 4 ranks", "fsdp, 2 ranks", "fsdp, 4 ranks")
    table = PLOTS["rank_lanes"].table(runs(), point="data, 4 ranks")
    assert table["rank"].tolist() == [0, 1, 2, 3] and table["host"][3] == "node-b"
    _, canvas = painted(PLOTS["rank_lanes"], runs(), STYLES["light"], point="data, 4 ranks")
    (lanes,) = [layer for layer in canvas.layers if isinstance(layer, rank_lanes.Lanes)]
    total = sum(table[name] for name in rank_lanes.ACTIVITIES)
    assert lanes.x_span()[1] == pytest.approx(np.max(total))
    assert "skew" in canvas.header.subtitle
    assert canvas.axis("left").categories[0][1] == "rank 0 (node-a)"
