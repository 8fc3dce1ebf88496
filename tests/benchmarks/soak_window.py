"""The window for ten minutes with a runner at full rate: memory, descriptors and threads.

    python tests/benchmarks/soak_window.py [--seconds 600]

Memory is that of the process without the columns of the session and what plots derive from them.
Exits with 1 if the last half needs more than the first, beyond what a garbage collector leaves.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workbench" / "samples"))

import psutil
import wire_samples
from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtWidgets import QApplication

from workbench import protocol
from workbench.client.runner_process import Runner
from workbench.ui.controllers.appearance import Appearance
from workbench.ui.settings import Settings
from workbench.ui.window import MainWindow
from workbench.ui.workspace import Workspace

COMMAND = [sys.executable, wire_samples.__file__, "0.002"]
SAMPLES = 20
SLACK_MB = 40.0  # of the collector and the allocator, over the whole time
DERIVED_BYTES = 256  # of rolling percentiles and pyramids of the plots, for each step


def session_bytes(workspace: Workspace) -> int:
    tables = [segment.steps for segment in workspace.session.shown.segments]
    tables += workspace.session.shown.telemetry.values()
    stored = sum(column.nbytes for table in tables for column in dict(table).values())
    return stored + DERIVED_BYTES * sum(
        segment.steps.rows for segment in workspace.session.shown.segments
    )


def measure(workspace: Workspace) -> tuple[float, int, int]:
    process = psutil.Process()
    rest = process.memory_info().rss - session_bytes(workspace)
    return rest / 2**20, process.num_fds(), threading.active_count()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        application = QApplication(["workbench"])
        settings = Settings(Path(folder) / "soak.ini")
        workspace = Workspace(launch=lambda journal: Runner(journal, COMMAND))
        window = MainWindow(workspace, settings, Appearance(application, workspace.theme, settings))
        window.show()
        workspace.run.start_runner()
        workspace.run.stateChanged.connect(lambda: _start_once(workspace))
        samples = []
        for _ in range(SAMPLES):
            loop = QEventLoop()
            QTimer.singleShot(round(1000 * seconds / SAMPLES), loop.quit)
            loop.exec()
            samples.append(measure(workspace))
            steps = sum(segment.steps.rows for segment in workspace.session.shown.segments)
            print("{:8.1f} MB  {:4} descriptors  {:3} threads".format(*samples[-1]), steps, "steps")
        window.close()
    middle, last = samples[SAMPLES // 2], samples[-1]
    grown = last[0] - middle[0] > SLACK_MB or last[1] > middle[1] + 2 or last[2] > middle[2] + 1
    print("grown" if grown or not steps else "constant")
    return 1 if grown or not steps else 0


def _start_once(workspace: Workspace) -> None:
    if workspace.run.state == "idle" and not workspace.session.shown.segments:
        workspace.run.send(protocol.Start(configuration=wire_samples.configuration()))


if __name__ == "__main__":
    raise SystemExit(main())
