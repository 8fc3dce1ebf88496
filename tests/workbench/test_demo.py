"""The guided demo as the README tells a newcomer to start it, on a machine without a display."""

import os
import subprocess
import sys

import h5py
import pytest


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")
    } | {"XDG_STATE_HOME": str(folder / "state")}
    done = subprocess.run(
        [sys.executable, "-m", "workbench", "demo", "--out", str(folder / "out")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=230,
    )
    return done, folder / "out"


def test_the_demo_ends_well_and_says_that_it_runs_offscreen(demo):
    done, _ = demo
    assert done.returncode == 0, done.stderr
    assert "offscreen" in done.stderr
    assert "Traceback" not in done.stderr and "plugin" not in done.stderr


def test_the_demo_leaves_session_charts_and_comparison(demo):
    _, out = demo
    assert {path.name for path in out.iterdir()} >= {
        "demo.h5",
        "step_time.png",
        "step_time.svg",
        "step_time.pdf",
        "comparison.md",
    }
    assert (out / "step_time.pdf").read_bytes().startswith(b"%PDF")


def test_the_demos_session_has_four_segments_that_differ(demo):
    _, out = demo
    with h5py.File(out / "demo.h5") as session:
        assert len(session["segments"]) == 4
        assert all(len(segment["steps/wall_ms"]) > 20 for segment in session["segments"].values())
    table = (out / "comparison.md").read_text()
    assert "AdamW: Fused" in table
    assert "Shared RoPE cache" in table
    assert "Gradient checkpointing" in table


def test_every_option_that_the_demo_switches_shows_its_effect(demo):
    done, _ = demo
    # Checkpointing, AdamW, the shared table; and what automatic attention chose.
    assert done.stdout.count(": effective: ") == 4
