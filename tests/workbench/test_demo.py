"""The guided demo as a newcomer starts it, without anybody to see or close a window."""

import os
import subprocess
import sys

import h5py
import numpy as np
import pytest
from hang_limit import HANG_S


def run_demo(folder, **environment):
    """Run the demo with its output in ``folder/out``; it has to end by itself."""
    display = ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")
    inherited = {name: value for name, value in os.environ.items() if name not in display}
    return subprocess.run(
        [sys.executable, "-m", "workbench", "demo", "--out", str(folder / "out")],
        capture_output=True,
        text=True,
        env={**inherited, "XDG_STATE_HOME": str(folder / "state"), **environment},
        timeout=HANG_S,
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    return run_demo(folder, QT_QPA_PLATFORM="offscreen"), folder / "out"


def test_the_demo_ends_by_itself_and_says_a_verdict_in_one_sentence(demo):
    done, _ = demo
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "plugin" not in done.stderr
    verdict, following, files = done.stdout.splitlines()
    assert verdict.startswith("Fused AdamW: ") and "95 % interval" in verdict
    assert verdict.endswith(", results match FP64.")
    assert following.startswith("Next: `workbench report ")
    assert files.startswith("Files: ")
    assert len(done.stderr.splitlines()) <= 5  # about six lines with the verdict


def test_the_demo_leaves_session_charts_and_comparison(demo):
    done, out = demo
    names = {path.name for path in out.iterdir()}
    charts = {f"step_time.{suffix}" for suffix in ("png", "svg", "pdf")}
    assert names == {"demo.h5", "comparison.md", "window.png", *charts}
    assert all(str(out / name) in done.stdout for name in names)
    assert (out / "step_time.pdf").read_bytes().startswith(b"%PDF")
    assert "AdamW: Fused" in (out / "comparison.md").read_text()


def test_the_demos_verdict_comes_within_a_minute_of_steps(demo):
    _, out = demo
    with h5py.File(out / "demo.h5") as session:
        times = [segment["steps/wall_ms"][:] for segment in session["segments"].values()]
        assert len(session["comparisons"]) >= 1
    assert len(times) >= 2 and all(map(len, times))
    assert sum(map(np.nansum, times)) < 60_000


@pytest.mark.slow
@pytest.mark.parametrize("environment", [{}, {"QT_QPA_PLATFORM": "minimal"}])
def test_the_demo_ends_without_a_display_too(tmp_path, environment):
    done = run_demo(tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert ("No window here" in done.stderr) == (not environment)
