"""An optimization on a GPU: memory and energy are counted, and limits are kept."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from sessions.studies.attribution.words import rows
from sessions.studies.optimization.words import CANDIDATES, best_row
from workbench import protocol

pytestmark = pytest.mark.gpu


@pytest.fixture
def train(small):
    return msgspec.structs.replace(
        small,
        model={},
        preset="tiny",
        workload="train",
        settings={"batch": 32, "sequence": 256},
        toggles={"adamw": "loop", "triton": "off", "precision": "fp32"},
    )


def optimize(runner, base, **options):
    options = {"budget_s": 60.0, "include": ["precision", "adamw", "checkpointing"], **options}
    runner.send(protocol.Optimize(base=base, **options))
    assert runner.finish().reason == "done", runner.describe()
    return runner.session.studies[-1]


def test_training_becomes_faster_and_time_memory_error_and_energy_are_known(runner, train):
    study = optimize(runner, train)
    best = best_row(study)
    assert best["wrong"] == 0 and best["title"] != "start"
    (gain,) = (row for row in rows(study, "effects")
               if (row["kind"], row["quantity"]) == ("total", "time"))  # fmt: skip
    assert gain["verdict"] == "FASTER"
    measured = [row for row in rows(study, CANDIDATES) if row["state"] == "raced"]
    assert np.isfinite([[row["peak_bytes"], row["step_ms"]] for row in measured]).all()
    if np.isfinite(measured[0]["joules"]):
        assert all(row["joules"] > 0 for row in measured)
    assert sum(row["front"] for row in measured) >= 1


def test_the_least_memory_and_a_limit_are_kept(runner, train):
    free = optimize(runner, train)
    peaks = {row["title"]: row["peak_bytes"] for row in rows(free, CANDIDATES)}
    limit = float(0.9 * peaks["start"])
    limited = best_row(optimize(runner, train, memory_limit=limit))
    assert limited["peak_bytes"] <= limit
    least = best_row(optimize(runner, train, objective="memory"))
    assert least["peak_bytes"] <= 1.01 * min(peak for peak in peaks.values() if peak > 0)


def test_what_a_gpu_waits_for_is_known_before_anything_else_is_tried(runner, train):
    """Steps of a small model consist mostly of launches, which a captured step does not have."""
    base = msgspec.structs.replace(
        train, settings={"batch": 1, "sequence": 64}, toggles={"adamw": "loop", "triton": "off"}
    )
    study = optimize(runner, base, include=["attention", "checkpointing", "adamw", "cuda_graphs"])
    first = rows(study, CANDIDATES)[1]
    assert "cuda_graphs=on" in first["title"] and "adamw=fused" in first["title"]
    assert "cuda_graphs=on" in best_row(study)["title"]
