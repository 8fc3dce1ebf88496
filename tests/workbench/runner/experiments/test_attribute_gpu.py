"""An attribution on a GPU: peaks are each arm's own, clocks are known, every rung is run."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from sessions.studies.attribution.words import rows
from workbench import protocol

pytestmark = pytest.mark.gpu


def attribute(runner, base, toggles, **options):
    runner.send(protocol.Attribute(base=base, toggles=toggles, **{"budget_s": 8.0, **options}))
    assert runner.finish().reason == "done", runner.describe()
    return runner.session.studies[-1]


def test_a_ladder_of_training_gives_time_memory_and_clocks_for_each_rung(runner, small):
    base = msgspec.structs.replace(
        small,
        model={},
        preset="tiny",
        workload="train",
        settings={"batch": 32, "sequence": 256},
        toggles={"adamw": "fused", "triton": "off"},
    )
    toggles = {"precision": "amp_bf16", "checkpointing": "full", "cuda_graphs": "on"}
    study = attribute(runner, base, toggles)
    arms = rows(study, "arms")
    assert [row["state"] for row in arms] == ["measured"] * 4
    assert all(row["wrong"] == 0 for row in arms), [row["numerics"] for row in arms]
    peaks = [row["peak_bytes"] for row in arms]
    assert peaks[1] < peaks[0] and peaks[2] < 0.9 * peaks[1]
    clocks = study.tables["blocks"]["clock_mhz"]
    assert np.isfinite(clocks).mean() > 0.9
    # The last rung by itself has the peak that it had as a rung: nothing else was counted.
    last = msgspec.structs.replace(base, toggles={**base.toggles, **toggles})
    reverse = {"checkpointing": "none"}
    again = rows(attribute(runner, last, reverse, budget_s=2.0), "arms")
    assert again[0]["peak_bytes"] == pytest.approx(peaks[3], rel=0.02)
