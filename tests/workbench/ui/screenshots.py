"""Pictures of the window for looking at: both themes, two sizes, two scales, several situations.

``python tests/workbench/ui/screenshots.py FOLDER [--only SITUATION]``. Each scale needs a process
of its own, because Qt reads it once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
SIZES = {
    "800x500": (800, 500),
    "900x600": (900, 600),
    "1280x800": (1280, 800),
    "1440x900": (1440, 900),
    "1600x1000": (1600, 1000),
    "1920x1080": (1920, 1080),
}
SITUATIONS = (
    "first",
    "running",
    "blocked",
    "failed",
    "palette",
    "events",
    "compare",
    "verdict",
    "attribution",
    "attribution-empty",
    "checklist",
    "presets",
    "claims",
    "claims-cut",
    "claims-empty",
    "sweep",
    "sweep-map",
    "sweep-empty",
    "optimize",
    "breakdown",
)
SCALE = "WORKBENCH_SCREENSHOT_SCALE"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=SITUATIONS)
    parser.add_argument("--scale", choices=("1", "2"))
    parser.add_argument("--size", choices=tuple(SIZES))
    parser.add_argument("--theme", choices=("dark", "light"))
    parser.add_argument("--font", type=float, default=0.0, help="points; 0: the system's size")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if os.environ.get(SCALE):
        draw(arguments)
        return
    for scale in (arguments.scale,) if arguments.scale else ("1", "2"):
        environment = {
            **os.environ,
            SCALE: scale,
            "QT_SCALE_FACTOR": scale,
            "QT_QPA_PLATFORM": "offscreen",
            "XDG_STATE_HOME": str(arguments.folder / ".state"),
        }
        subprocess.run([sys.executable, *sys.argv], env=environment, check=True)


def draw(arguments: argparse.Namespace) -> None:
    sys.path[:0] = [str(HERE), str(HERE.parent / "samples"), str(HERE.parents[2])]
    from PySide6.QtWidgets import QApplication

    application = QApplication([])
    for theme in (arguments.theme,) if arguments.theme else ("dark", "light"):
        for size in (arguments.size,) if arguments.size else SIZES:
            for situation in (arguments.only,) if arguments.only else SITUATIONS:
                name = f"{situation}-{theme}-{size}@{os.environ[SCALE]}x.png"
                path = arguments.folder / name
                shoot(application, situation, theme, SIZES[size], path, arguments.font)
                print(path, flush=True)


def shoot(
    application, situation: str, theme: str, size: tuple[int, int], path: Path, font: float
) -> None:
    from workbench.ui.controllers.appearance import Appearance
    from workbench.ui.settings import Settings
    from workbench.ui.window import MainWindow
    from workbench.ui.workspace import Workspace

    ini = path.parent / ".settings.ini"
    ini.unlink(missing_ok=True)
    settings = Settings(ini)
    settings.theme = theme
    settings.font_points = font
    player = Player(situation)
    workspace = Workspace(launch=lambda journal: player)
    window = MainWindow(workspace, settings, Appearance(application, workspace.theme, settings))
    window.resize(*size)
    window.show()
    workspace.run.start_runner()
    wait(lambda: player.done and not workspace._link._reader._queue, 0.5)
    if workspace.run.running is not None:
        workspace.configuration.edit(workspace.run.running)
    arrange(window, situation)
    wait(window.settled, 1.5)
    window.grab().save(str(path))
    window.close()
    window.deleteLater()
    wait(lambda: True, 0.05)


def arrange(window, situation: str) -> None:
    """Do what the user did last in the situation."""
    import msgspec
    import profile_samples
    from fake_session import compared
    from PySide6.QtCore import QPoint
    from PySide6.QtTest import QTest
    from PySide6.QtWidgets import QScrollArea

    from workbench.ui.controllers.verdict_prompt import Offer
    from workbench.ui.state import config_edit

    workspace = window.workspace
    if situation == "blocked":
        workspace.configuration.choose({"workload": "forward"}, "Forward")
        workspace.configuration.edit(
            config_edit.with_model(
                workspace.configuration.catalogue, workspace.configuration.edited, "n_heads", 7
            )
        )
        QTest.qWait(500)
        rows = window.toggles.rows
        area = rows["adamw"]
        while not isinstance(area, QScrollArea):
            area = area.parentWidget()
        area.ensureWidgetVisible(rows["cuda_graphs"])
    elif situation == "palette":
        window.show_palette()
        window.palette_.line.setText("pre")
    elif situation == "events":
        window.workspace.session.add_note("clocks look steady now")
        window.dock_area.bring("events")
    elif situation == "compare":
        for session in compared():
            window.workspace.compared.add(session)
        window.dock_area.bring("compare")
    elif situation == "verdict":
        comparisons = workspace.session.shown.comparisons
        facts = {**comparisons[0].facts, "p": 0.03, "numerics": {}}
        doubtful = msgspec.structs.replace(
            comparisons[0], ratio=0.981, low=0.974, high=0.9895, verdict="FASTER", facts=facts
        )
        clear = msgspec.structs.replace(
            doubtful, ratio=1.12, low=1.11, high=1.13, verdict="SLOWER", facts={**facts, "p": 1e-7}
        )
        comparisons[:0] = [doubtful, clear]
        workspace.verdict_prompt.dismiss()
        segments, newest = workspace.session.shown.segments, workspace.verdicts.newest
        arms = [segments[index].configuration for index in newest.facts["segments"]]
        workspace.verdict_prompt.judged = Offer(*arms, "AdamW: Fused")
        workspace.session.comparisonsChanged.emit()
        window.dock_area.bring("verdict")
    elif situation.startswith("attribution"):
        window.dock_area.bring("attribution")
    elif situation in ("checklist", "optimize"):
        window.dock_area.bring(situation)
    elif situation == "breakdown":
        workspace.session.shown.studies.append(profile_samples.rich_study())
        workspace.session.studiesChanged.emit()
        window.dock_area.bring("breakdown")
    elif situation.startswith("claims"):
        window.dock_area.bring("claims")
    elif situation == "presets":
        workspace.presets.save("Of last week")
        workspace.configuration.choose({"workload": "forward"}, "Forward")
        workspace.presets.apply(workspace.presets.offered[-1])
        QTest.qWait(500)
        menu = window.toggles.presets.menu
        menu.popup(window.toggles.presets.button.mapToGlobal(QPoint(0, 30)))
    elif situation.startswith("sweep"):
        window.dock_area.bring("sweep")
        if situation == "sweep-map":
            workspace.sweeps.set_field(1, "model.n_layers")
            QTest.qWait(300)
            window.sweep._tabs.setCurrentIndex(2)
    elif situation == "running":
        window.workspace.session.select(2)


def wait(until, then_s: float, limit_s: float = 120.0) -> None:
    """Wait in an event loop: without one Qt never deletes what it has retired, and draws it."""
    from PySide6.QtTest import QTest

    end = time.monotonic() + limit_s
    while time.monotonic() < end and not until():
        QTest.qWait(10)
    QTest.qWait(round(then_s * 1000))


class Player:
    """Plays a situation's messages at once and then says nothing more."""

    def __init__(self, situation: str) -> None:
        self._situation = situation
        self._closed = threading.Event()
        self._answers: queue.Queue = queue.Queue()
        self.done = False
        self._count = 0

    def messages(self):
        from fake_session import messages

        for message in messages(self._situation):
            self._count += 1
            yield message
        self.done = True
        while not self._closed.is_set():
            with contextlib.suppress(queue.Empty):
                yield self._answers.get(timeout=0.05)

    def send(self, command) -> bool:
        from fake_catalogue import availability

        from workbench import protocol

        if isinstance(command, protocol.Check):
            self._answers.put(availability(command.configuration))
        return True

    def cancel(self) -> None:
        self._closed.set()

    def close(self) -> None:
        self._closed.set()


if __name__ == "__main__":
    main()
