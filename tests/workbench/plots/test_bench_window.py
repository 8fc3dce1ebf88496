"""The benchmark of the plots runs, and its figures are of what it says it does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from reference_machine import slowness

from sessions.storage import hdf5
from workbench.theming.theme import DARK

ROWS = 5_000


@pytest.fixture
def benchmark_script(monkeypatch, qapp):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    import bench_window

    monkeypatch.setattr(bench_window, "KEPT", ROWS)
    yield bench_window
    sys.modules.pop("bench_window")


def test_live_plots_are_painted_while_samples_arrive(benchmark_script):
    before = slowness()
    figures = benchmark_script.live(None, 0.6, DARK)
    slow = max(before, slowness())
    assert figures["frames_per_s"] * slow > 1
    assert figures["samples_per_s"] * slow > 100
    assert 0 < figures["frame_ms"] <= figures["longest_ms"]


def test_a_saved_session_is_opened_and_drawn(benchmark_script, tmp_path):
    path = tmp_path / "saved.h5"
    hdf5.save(benchmark_script.session_of(ROWS), path)
    figures = benchmark_script.load(str(path), DARK)
    assert figures["open_s"] > 0 and figures["draw_s"] > 0
