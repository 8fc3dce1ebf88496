"""The session of a training script in the window: every panel shows it, and none fails."""

from __future__ import annotations

import numpy as np
import pytest

from sessions.columns import Columns
from sessions.model import (
    SCRIPT,
    STEP_COLUMNS,
    Configuration,
    Evidence,
    Phase,
    PhaseSpan,
    Segment,
    Session,
    Study,
)
from sessions.storage import hdf5
from sessions.studies import breakdown
from workbench.ui.panels.lazy_panel import LazyPanel


@pytest.fixture
def saved(tmp_path):
    """A file as ``workbench run -- python train.py`` writes it."""
    count = 60
    columns = Columns(STEP_COLUMNS)
    columns.append(
        {
            "t_s": np.arange(count) * 0.02,
            "wall_ms": np.full(count, 20.0),
            "gpu_ms": np.full(count, np.nan),
            "phase": np.full(count, int(Phase.STEADY)),
        }
    )
    segment = Segment(
        index=0,
        configuration=Configuration(
            family=SCRIPT,
            preset="train.py",
            workload="train",
            settings={"command": "python train.py --lr 3e-4"},
            toggles={"workers": "4"},
            data="script",
        ),
        label="train.py: workers=4",
        phases=[PhaseSpan(int(Phase.STEADY), 0.0, 1.2)],
        evidence=[Evidence("workers", "4", "effective", "data loaders changed: 1")],
        ledger={"input_wait_ms": 5.0, "input_wait_share": 0.25, "exit_code": 0},
        steps=columns,
    )
    kernels = {
        "name": np.array(["waiting for input", "everything else"], object),
        "module": np.array([breakdown.INPUT, breakdown.OUTSIDE], object),
        "phase": np.array(["input", "step"], object),
        "kind": np.array([breakdown.INPUT_WAIT, "other"], object),
        "operator": np.array(["", ""], object),
        "calls": np.ones(2),
        "us": np.array([5000.0, 15000.0]),
    }
    study = Study(breakdown.KIND, "train.py", 0.0, {"steps": 60}, {}, {"kernels": kernels})
    path = tmp_path / "script.h5"
    hdf5.save(Session(title="train.py", segments=[segment], studies=[study]), path)
    return path


def test_every_panel_shows_a_script(qtbot, ready, saved):
    for dock in ready.dock_area.docks.values():
        if isinstance(dock.widget(), LazyPanel):
            dock.widget().panel()
        dock.show()
    ready.open_path(saved)
    qtbot.waitUntil(lambda: ready.workspace.session.shown.title == "train.py")
    assert ready.workspace.session.shown.segments[0].configuration.title == "train.py"
