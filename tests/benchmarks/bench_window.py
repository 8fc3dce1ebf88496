"""The cost of plots: frames a second while 10,000 samples arrive, time to draw, memory.

    python tests/benchmarks/bench_window.py [--seconds S] [--theme dark|light] [--json]

Four live plots on Qt's offscreen platform in a window of 1440 x 900, all samples kept. The data
arrives as it does from the runner: in batches on the event loop, 60 times a second.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workbench" / "samples"))

import numpy as np
import psutil
from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtWidgets import QApplication
from synthetic import GIB, gpu_session

from sessions.model import Phase, PhaseSpan, Session
from sessions.storage import hdf5
from workbench.theming.theme import DARK, LIGHT, Theme
from workbench.ui import panel_list
from workbench.ui.panels.live import SHOWN, WINDOWS
from workbench.ui.workspace import Workspace

KEPT = 1_000_000
RATE = 10_000
SIZE = (1104, 620)  # what the live panel has of a window of 1440 x 900


def workspace_of(session: Session, theme: Theme) -> Workspace:
    """Return the window's workspace, whose recorder has recorded this session."""
    workspace = Workspace()
    workspace.theme.set(theme)
    workspace.session.recorder.session = workspace.session.shown = session
    return workspace


class Source:
    """Appends samples at ``RATE``, in step with the clock."""

    def __init__(self, workspace: Workspace) -> None:
        self._session = workspace.session
        self._segment = workspace.session.shown.segments[-1]
        self._telemetry = workspace.session.shown.telemetry["gpu0"]
        self._rng = np.random.default_rng(0)
        self._last_s = float(self._segment.steps["t_s"][-1])
        self._begun = time.perf_counter()
        self.samples = 0

    def push(self) -> None:
        due = int((time.perf_counter() - self._begun) * RATE) - self.samples
        if due <= 0:
            return
        t_s = self._last_s + (self.samples + 1 + np.arange(due)) / RATE
        self.samples += due
        times = 0.1 * (1 + 0.03 * self._rng.standard_normal(due))
        bytes_ = np.full(due, 30 * GIB) * (1 + 0.01 * self._rng.random(due))
        self._segment.steps.append(  # type: ignore[attr-defined]
            {
                "t_s": t_s,
                "gpu_ms": times,
                "wall_ms": times,
                "allocated": bytes_,
                "reserved": 1.2 * bytes_,
                "peak": 1.1 * bytes_,
                "phase": np.full(due, Phase.STEADY),
            }
        )
        start = self._segment.phases[-1].start_s
        self._segment.phases[-1] = PhaseSpan(Phase.STEADY, start, float(t_s[-1]))
        if t_s[-1] - self._telemetry["t_s"][-1] >= 0.05:
            row = {name: [float(self._telemetry[name][-1])] for name in self._telemetry}
            row["t_s"] = [float(t_s[-1])]
            row["power_w"] = [600 + 10 * float(self._rng.standard_normal())]
            self._telemetry.append(row)  # type: ignore[attr-defined]
        self._session.dataArrived.emit()


def session_of(rows: int) -> Session:
    """Return a live session that already has ``rows`` steps at ``RATE``."""
    return gpu_session(1, rows, seed=1, title=f"{rows:,} steps", typical_ms=1e3 / RATE)


def live(window_s: float | None, seconds: float, theme: Theme) -> dict[str, float]:
    """Frames a second with four plots; the panel paints whenever new samples have come."""
    workspace = workspace_of(session_of(KEPT), theme)
    panel = panel_list.live(workspace)
    panel.resize(*SIZE)
    panel.set_window(window_s)
    panel.show()
    _settle()
    source = Source(workspace)
    painted = 0
    busy_s = cpu_s = 0.0
    longest_s = 0.0
    frame = panel._frame

    def timed_frame() -> None:
        nonlocal painted, busy_s, cpu_s, longest_s
        begun, begun_cpu = time.perf_counter(), time.process_time()
        frame()
        QApplication.sendPostedEvents()  # Qt paints what the frame has changed, and only that
        spent = time.perf_counter() - begun
        painted += 1
        busy_s += spent
        cpu_s += time.process_time() - begun_cpu
        longest_s = max(longest_s, spent)

    panel._timer.timeout.disconnect()
    panel._timer.timeout.connect(timed_frame)
    feed = QTimer()
    feed.setInterval(1)
    feed.timeout.connect(source.push)
    feed.start()
    begun = time.perf_counter()
    _settle(seconds)
    lasted = time.perf_counter() - begun
    feed.stop()
    panel.close()
    panel.deleteLater()
    _settle()
    return {
        "frames_per_s": painted / lasted,
        "frame_ms": 1e3 * busy_s / max(1, painted),
        "frame_cpu_ms": 1e3 * cpu_s / max(1, painted),
        "longest_ms": 1e3 * longest_s,
        "samples_per_s": source.samples / lasted,
    }


def load(path: str, theme: Theme) -> dict[str, float]:
    """Time to open a saved session and to draw it, the panel being there; the process's memory."""
    workspace = workspace_of(session_of(1), theme)
    panel = panel_list.live(workspace)
    panel.resize(*SIZE)
    panel.show()
    _settle()
    before = psutil.Process().memory_info().rss
    begun = time.perf_counter()
    session = hdf5.load(path)
    opened = time.perf_counter()
    workspace.session.shown = session
    workspace.session.sessionChanged.emit()
    QApplication.sendPostedEvents()
    for chart in panel.shown:
        chart._view.viewport().repaint()
    drawn = time.perf_counter()
    _settle()
    return {
        "open_s": opened - begun,
        "draw_s": drawn - opened,
        "rss_before_mb": before / 1e6,
        "rss_mb": psutil.Process().memory_info().rss / 1e6,
    }


def load_elsewhere(theme: str, is_own: bool = True) -> dict[str, float]:
    """``load`` in a process of its own, whose memory is that of a window.

    A file of another account (not ``is_own``) is checked in a child process first.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "million.h5"
        hdf5.save(session_of(KEPT), path)
        command = [sys.executable, __file__, "--load", str(path), "--theme", theme]
        state = {} if is_own else {"XDG_STATE_HOME": str(Path(folder) / "state")}
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
            env={**os.environ, **state},
        )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _settle(seconds: float = 0.3) -> None:
    loop = QEventLoop()
    QTimer.singleShot(int(1e3 * seconds), loop.quit)
    loop.exec()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--theme", choices=("dark", "light"), default="dark")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    application = QApplication.instance() or QApplication([])
    theme = DARK if arguments.theme == "dark" else LIGHT
    if arguments.load:
        print(json.dumps(load(arguments.load, theme)))
        return
    opened = load_elsewhere(arguments.theme)
    foreign = load_elsewhere(arguments.theme, is_own=False)
    running = {
        name: live(WINDOWS[name], arguments.seconds, theme)
        for name in ("Whole session", "Last 10 s")
    }
    if arguments.json:
        print(json.dumps({"load": opened, "foreign": foreign, "live": running}))
        return
    print(f"four live plots ({', '.join(SHOWN)}), {KEPT:,} samples kept, {RATE:,} samples/s")
    for name, figures in running.items():
        print(
            f"  {name:<14} {figures['frames_per_s']:5.1f} frames/s, {figures['frame_ms']:5.1f} ms "
            f"a frame, of them {figures['frame_cpu_ms']:.1f} ms of this process (longest "
            f"{figures['longest_ms']:.0f} ms), {figures['samples_per_s']:,.0f} samples/s taken in"
        )
    print(
        f"a session of {KEPT:,} steps: opened in {opened['open_s']:.2f} s, drawn in "
        f"{opened['draw_s']:.2f} s, {opened['rss_mb']:.0f} MB of memory with it "
        f"({opened['rss_before_mb']:.0f} MB without); one of another account: opened in "
        f"{foreign['open_s']:.2f} s, drawn in {foreign['draw_s']:.2f} s"
    )
    del application


if __name__ == "__main__":
    main()
