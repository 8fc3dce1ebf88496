"""One option toggled away and back in the real window while the load of the machine drifts."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import Qt
from test_panels import panel

from sessions.model import Phase
from workbench import protocol
from workbench.ui.panels._segment_model import INTERVAL, RATIO
from workbench.ui.state import config_edit

TOGGLES = 20
STEPS = 130


def test_twenty_toggles_away_and_back_call_nothing_different(qtbot, ready):
    workspace, segments = ready.workspace, panel(ready, "segments")
    model, theme = segments.model, workspace.theme.current
    base = config_edit.first(workspace.configuration.catalogue)
    configurations = (base, config_edit.with_toggles(base, {"adamw": "fused"}))
    draw = np.random.default_rng(3)
    now = 1.0
    for index, step_ms in enumerate(20 * np.exp(np.cumsum(draw.normal(0, 0.05, TOGGLES)))):
        begun = protocol.SegmentStarted(
            t_s=now, index=index, configuration=configurations[index % 2], label=f"{index}"
        )
        times = step_ms * (1 + 0.01 * draw.standard_normal(STEPS))
        ends = now + np.cumsum(times) / 1e3
        steady = [float(Phase.STEADY)] * STEPS
        columns = {"t_s": ends.tolist(), "wall_ms": times.tolist(), "phase": steady}
        now = float(ends[-1])
        workspace.session.recorder.record(begun)
        workspace.session.recorder.record(protocol.Steps(t_s=now, segment=index, columns=columns))
        if index % 5 == 4:  # a look
            workspace.session.segmentsChanged.emit()
            qtbot.waitUntil(lambda rows=index + 1: model.rowCount() == rows)
            qtbot.waitUntil(lambda: segments.current)
            check(model, {theme.good.lower(), theme.bad.lower()})
    assert "the machine drifted between segments" in segments.note.text()
    assert segments.note.isVisible()


def check(model, colours):
    """No coloured ratio; an interval only of repeats in turn, and one that holds the truth."""
    headings = [
        model.headerData(at, Qt.Orientation.Horizontal) for at in range(model.columnCount())
    ]
    for row in range(1, model.rowCount()):
        for heading in (RATIO, INTERVAL):
            index = model.index(row, headings.index(heading))
            colour = index.data(Qt.ItemDataRole.ForegroundRole)
            assert colour is None or colour.name() not in colours
        interval = model.index(row, headings.index(INTERVAL)).data()
        if interval != "unpaired":
            low, high = map(float, interval.split(" to "))
            assert low < 1 < high and row % 2 == 1 and model.rowCount() >= 10
