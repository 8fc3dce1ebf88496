"""The panel of timed kernels: both tables of a session that has some, else how to get one."""

from __future__ import annotations

import numpy as np

from sessions.model import KERNELS, Configuration, Phase, Segment
from workbench.ui.panels.kernels import KernelsPanel


def timed(implementation: str, ms: float) -> Segment:
    configuration = Configuration(
        family=KERNELS,
        preset="rms_norm",
        workload="forward",
        settings={"case": "2048 D4096", "dtype": "bfloat16"},
        toggles={"implementation": implementation},
    )
    segment = Segment(0, configuration, implementation)
    segment.ledger = {"floor_us": 5.0, "bytes": 100, "flops": 100, "error": 0.5, "first_s": 0.1}
    segment.steps = {
        "t_s": np.arange(16.0),
        "phase": np.full(16, int(Phase.STEADY)),
        "block": np.repeat(np.arange(1, 9), 2),
        "gpu_ms": np.full(16, ms),
        "wall_ms": np.full(16, ms),
    }
    return segment


def test_timed_kernels_are_shown_with_the_leaders_first(qtbot, workspace):
    panel = KernelsPanel(workspace.session, workspace.theme)
    qtbot.addWidget(panel)
    panel.show()
    assert panel.empty.isVisible()
    workspace.session.shown.segments += [timed("triton", 0.02), timed("liger", 0.01)]
    workspace.session.segmentsChanged.emit()
    qtbot.waitUntil(lambda: panel.leaders.isVisible())
    shown = [panel.leaders.item(0, column).text() for column in (4, 6, 8)]
    assert shown == ["triton", "liger", "2.00"]
    assert panel.everything.rowCount() == 2
