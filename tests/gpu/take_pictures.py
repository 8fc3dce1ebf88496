"""Real runs, studies and a generated text, on a GPU or a CPU: pictures of every panel with them.

    python tests/gpu/take_pictures.py OUT [--preset small] [--batch 8] [--seconds 8]
                                         [--minutes 2.8]

Drives the window offscreen, with the real runner, as a person would. Writes ``window.png`` and
``verdict.png``, taken while they are live, and for each theme and size one sheet of all panels,
``dark-1440x900.png`` say. What fails is told, the rest goes on; ends with 1 then, or if a panel
has nothing to show.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workbench" / "ui"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec
from PySide6.QtGui import QColor, QFont, QFontDatabase, QFontInfo, QImage, QPainter, QPixmap
from PySide6.QtWidgets import QApplication
from screenshots import wait

from sessions import numerics
from sessions.model import Segment
from sessions.verdicts import statistics
from workbench import protocol
from workbench.plots import PLOTS, Run
from workbench.ui.controllers.appearance import Appearance
from workbench.ui.panels._chart import Chart
from workbench.ui.panels.empty import Empty
from workbench.ui.settings import Settings
from workbench.ui.state import config_edit, session_files
from workbench.ui.window import MainWindow
from workbench.ui.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]
SIZES = ((1440, 900), (2560, 1440))
THEMES = ("dark", "light")
COLUMNS = 3
FONT = "DejaVu Sans"
GAP = 12
STEPS = 110  # steady steps of each segment
SETTLE_S = 0.8  # until a panel that was brought has drawn itself
LIMIT_S, CPU_LIMIT_S = 60.0, 300.0  # of one step
MINUTES, CPU_MINUTES = 2.8, 20.0  # for everything measured
BENCH_S = 25.0
TINY = {"dim": 32, "n_layers": 2, "n_heads": 2, "n_kv_heads": 1, "max_sequence": 256}
KERNELS = ["rms_norm", "swiglu", "rope", "attention"]


class Sitting:
    """One window and what is done in it; ``failures`` are sentences."""

    def __init__(self, application: QApplication, options: argparse.Namespace) -> None:
        self.options = options
        self.failures: list[str] = []
        self._began = time.monotonic()
        self.workspace = Workspace()
        settings = Settings(Path(tempfile.mkdtemp()) / "settings.ini")
        settings.theme = THEMES[0]
        self.window = MainWindow(
            self.workspace, settings, Appearance(application, self.workspace.theme, settings)
        )
        self.window.resize(*SIZES[0])
        self.window.show()
        self.ended = 0  # runs
        self.workspace.failures.reported.connect(self._failed)
        self.workspace.run.received.connect(self._hear)

    def until(self, reached: Callable[[], object], what: str, then_s: float = 0.0) -> None:
        """Let the window live until then; raises ``TimeoutError``."""
        minutes = self.options.minutes or (MINUTES if self.on_gpu else CPU_MINUTES)
        left_s = 60 * minutes - (time.monotonic() - self._began)
        limit_s = max(5, min(LIMIT_S if self.on_gpu else CPU_LIMIT_S, left_s))
        wait(lambda: reached() or self.workspace.run.state == "dead", 0.0, limit_s)
        if not reached():
            raise TimeoutError(f"waited in vain until {what}; runner: {self.workspace.run.state}")
        wait(lambda: True, then_s)

    def idle(self) -> None:
        """Let nothing run."""
        self.workspace.run.stop()
        self.until(lambda: self.workspace.run.state == "idle", "the runner is idle")

    def attempt(self, name: str, act: Callable[[], None]) -> None:
        """Do one thing; what goes wrong is noted, and the runner made idle again."""
        began = time.monotonic()
        try:
            act()
        except Exception as error:  # noqa: BLE001 - the other pictures are wanted all the same
            self.note(f"{name}: {type(error).__name__}: {error}")
            traceback.print_exc()
            if self.workspace.run.state == "dead":
                self.workspace.run.start_runner()
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)

    def note(self, failure: str) -> None:
        """Keep a failure, and tell it."""
        self.failures.append(failure)
        print(f"FAILED {failure}", flush=True)

    def _failed(self, failure: protocol.Failure) -> None:
        self.note(f"{failure.kind}: {failure.sentence}")

    def _hear(self, message: protocol.AnyMessage) -> None:
        self.ended += isinstance(message, protocol.Finished)

    # What is done

    def build(self) -> None:
        """Wait for the runner and choose a training step of HYDRA."""
        workspace = self.workspace
        workspace.run.start_runner()
        self.until(
            lambda: workspace.run.state == "idle" and workspace.configuration.catalogue,
            "the runner is there",
        )
        assert (
            workspace.configuration.catalogue is not None
            and workspace.configuration.edited is not None
        )
        chosen = config_edit.with_family(
            workspace.configuration.catalogue, workspace.configuration.edited, "hydra"
        )
        preset = self.options.preset or ("small" if self.on_gpu else "tiny")
        chosen = config_edit.with_preset(workspace.configuration.catalogue, chosen, preset)
        chosen = config_edit.with_workload(workspace.configuration.catalogue, chosen, "train")
        chosen = msgspec.structs.replace(chosen, toggles=self._off())
        if not self.on_gpu:
            small = {"batch": 2, "sequence": 64}
            chosen = msgspec.structs.replace(chosen, model=TINY, settings=small)
        if self.options.batch:
            settings = {**chosen.settings, "batch": self.options.batch}
            chosen = msgspec.structs.replace(chosen, settings=settings)
        self.window.set_theme(THEMES[0])
        workspace.configuration.edit(chosen)

    def _off(self) -> dict[str, str]:
        """Every toggle at its first option."""
        catalogue = self.workspace.configuration.catalogue
        assert catalogue is not None
        return {toggle.name: toggle.options[0].name for toggle in catalogue.toggles}

    @property
    def on_gpu(self) -> bool:
        """Return True if the runner has a GPU."""
        catalogue = self.workspace.configuration.catalogue
        return catalogue is not None and catalogue.device == "cuda"

    def toggles(self) -> list[dict[str, str]]:
        """Return what is switched on, one after the other."""
        if self.on_gpu:
            kernels = [{"triton": "on"}, {"precision": "amp_bf16"}]
            return [*kernels, {"adamw": "fused"}, {"cuda_graphs": "on"}]
        return [{"adamw": "fused"}, {"rope_cache": "shared"}, {"checkpointing": "full"}]

    def generate(self) -> None:
        """Generate a text, in a run of its own."""
        workspace = self.workspace
        before = workspace.configuration.edited
        assert before is not None and workspace.configuration.catalogue is not None
        text = config_edit.with_workload(workspace.configuration.catalogue, before, "generate")
        precision = {"precision": before.toggles["precision"]}  # the rest is of the training step
        text = msgspec.structs.replace(text, toggles={**self._off(), **precision})
        if not self.on_gpu:
            text = msgspec.structs.replace(text, settings={"batch": 1, "sequence": 16})
        workspace.configuration.edit(msgspec.structs.replace(text, data=str(ROOT / "README.md")))
        workspace.runs.start()
        try:
            writing = self.workspace.session.shown.segments
            self.until(lambda: "text" in writing[-1].ledger, "a text is written", 3.0)
        finally:
            self.idle()
            workspace.configuration.edit(before)

    def run(self) -> None:
        """Toggle a run while it goes on; picture the window, and what it measured."""
        workspace = self.workspace
        segments = workspace.session.shown.segments
        for number, choices in enumerate([{}, *self.toggles()]):
            count = len(segments) + 1
            if not choices:
                workspace.runs.start()
            else:
                workspace.configuration.choose(
                    choices, ", ".join(f"{n}={o}" for n, o in choices.items())
                )
            self.until(
                lambda count=count: (
                    len(segments) >= count
                    and segments[-1].evidence is not None
                    and well_measured(segments[-1])
                ),
                f"segment {number} is measured",
            )
        self.window.dock_area.bring("live")
        self.until(
            lambda: workspace.run.state == "running" and workspace.run.progress is None,
            "the run goes on",
        )
        wait(lambda: True, SETTLE_S)
        self.save(self.window.grab(), "window")

    def verdict(self) -> None:
        """Two comparisons, the second against one toggle less."""
        workspace = self.workspace
        self.window.verdict.budget.setValue(self.options.seconds)
        for _ in range(2):
            self.until(lambda: not workspace.verdicts.why_not_before(), "it can be asked for")
            self.window.judge()
            self.until(lambda: workspace.verdicts.busy, "the comparison is asked for")
            self.until(lambda: not workspace.verdicts.busy, "the verdict is there")
            self.until(lambda: workspace.run.state == "running", "the run goes on")
            wait(lambda: True, SETTLE_S)
            self.save(self.window.grab(), "verdict")
            (last,) = self.toggles()[-1]
            workspace.configuration.set_toggle(
                last, config_edit.toggle_of(workspace.configuration.catalogue, last).options[0].name
            )
            off = workspace.configuration.edited
            self.until(lambda off=off: workspace.run.running == off, "the toggle is off", 0.5)
        self.idle()

    def attribute(self) -> None:
        """Attribute a ladder of the toggles."""
        workspace = self.workspace
        wanted = {name: option for choices in self.toggles() for name, option in choices.items()}
        workspace.configuration.choose(wanted, "All of them")
        self.window.attribution.budget.setValue(1.5 * self.options.seconds)
        self.until(lambda: not workspace.attributions.why_not(), "an attribution can be asked for")
        self.study(workspace.attributions.run, "attribution")

    def study(self, ask: Callable[[], None], kind: str) -> None:
        """Run a study of this kind, to its end."""
        self.until(lambda: self.workspace.run.state == "idle", "the runner is idle", 0.3)
        ended = self.ended
        ask()
        self.until(lambda: self.ended > ended, f"the {kind} is over", 0.3)

    def sweep(self) -> None:
        """Sweep the sequence and the batch, under two arms."""
        sweeps = self.workspace.sweeps
        settings = self.workspace.configuration.edited.settings
        sweeps.set_field(1, "settings.batch")
        length, batch = int(settings["sequence"]), int(settings["batch"])
        axes = ([length // 4, length // 2, length], [max(1, batch // 2), batch])
        for axis, values in enumerate(axes):
            sweeps.set_values(axis, ", ".join(map(str, values)))
        sweeps.set_arm("plain", True)
        self.window.sweep.seconds.setValue(0.5)
        self.study(sweeps.run, "sweep")

    def bench(self) -> None:
        """Benchmark some kernels, for the roofline."""
        self.workspace.measurements.perform(
            protocol.Bench(operators=KERNELS if self.on_gpu else KERNELS[:1])
        )
        self.until(lambda: self.workspace.run.active, "the benchmark begins")
        wait(lambda: not self.workspace.run.active, 0.0, BENCH_S)  # then what it has is shown

    def compare(self) -> None:
        """Compare what was measured so far with what will be."""
        before = dataclasses.replace(
            session_files.snapshot(self.workspace.session.shown), id="earlier"
        )
        before.title = "Earlier sitting"
        workspace = self.workspace
        workspace.compared.add(before)
        trained = [
            segment.index
            for segment in workspace.session.shown.segments
            if segment.configuration.workload == "train"
        ]
        self.window.compare.choose_segment(before, trained[0])
        self.window.compare.choose_segment(workspace.session.shown, trained[-1])
        wait(lambda: True, 2.0)

    # Pictures

    def sheet(self, theme: str, size: tuple[int, int]) -> None:
        """One picture of all panels, each in a window of this size."""
        window = self.window
        window.set_theme(theme)
        window.resize(*size)
        window.dock_area.proportion()
        tiles: list[QPixmap] = []
        window.dock_area.bring("segments")
        for name in ("live", "verdict", "attribution", "sweep", "breakdown", "memory", "checklist",
                     "compare", "text", "events", "segments"):  # fmt: skip
            self.attempt(
                f"{theme} {size[0]} {name}", lambda name=name: tiles.append(self.picture(name))
            )
        self.attempt(f"{theme} roofline", lambda: tiles.append(self.roofline(size)))
        width, height = tiles[0].width(), tiles[0].height()
        rows = -(-len(tiles) // COLUMNS)
        image = QImage(
            COLUMNS * (width + GAP) + GAP, rows * (height + GAP) + GAP, QImage.Format.Format_RGB32
        )
        image.fill(QColor("#808080"))
        painter = QPainter(image)
        for index, tile in enumerate(tiles):
            row, column = divmod(index, COLUMNS)
            painter.drawPixmap(GAP + column * (width + GAP), GAP + row * (height + GAP), tile)
        painter.end()
        self.save(QPixmap.fromImage(image), f"{theme}-{size[0]}x{size[1]}")

    def picture(self, name: str) -> QPixmap:
        """Return the window with one panel in front."""
        dock_area = self.window.dock_area
        dock = dock_area.docks["breakdown" if name == "memory" else name]
        dock_area.bring(dock.objectName())
        wait(lambda: True, SETTLE_S)
        if dock.objectName() == "breakdown":
            tabs = self.window.breakdown.tabs
            titles = [tabs.tabText(index) for index in range(tabs.count())]
            tabs.setCurrentIndex(titles.index("Memory" if name == "memory" else "Kernels"))
            wait(lambda: True, SETTLE_S)
        if any(empty.isVisible() for empty in dock.findChildren(Empty)):
            self.note(f"{name}: the panel is empty")
        return self.window.grab()

    def roofline(self, size: tuple[int, int]) -> QPixmap:
        """Return the kernels under this machine's roof; no panel shows it, reports do."""
        chart = Chart(PLOTS["roofline"], self.workspace.theme.current, self.workspace.tasks)
        chart.resize(*size)
        chart.show_runs([Run(self.workspace.session.shown)])
        chart.show()
        wait(lambda: True, SETTLE_S)
        if chart.reason is not None:
            self.note(f"roofline: {chart.reason}")
        return chart.grab()

    def save(self, picture: QPixmap, name: str) -> None:
        """Write a picture; raises ``OSError``."""
        path = self.options.out / f"{name}.png"
        if not picture.save(str(path)):
            raise OSError(f"{path} was not written")


def well_measured(segment: Segment) -> bool:
    """Return True if it has enough steady steps, and its numbers were checked."""
    enough = len(statistics.steady_ms(segment)) >= STEPS
    return enough and numerics.was_checked(segment.ledger)


def main() -> int:
    """Do all of it; 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--preset", default="", help="of HYDRA; default: small on a GPU, else tiny")
    parser.add_argument("--batch", type=int, help="default: as the preset has it")
    parser.add_argument("--seconds", type=float, default=8.0, help="budget of a comparison")
    allowed = f"for everything measured; default: {MINUTES} on a GPU, else {CPU_MINUTES}"
    parser.add_argument("--minutes", type=float, help=allowed)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp()  # nobody's journals
    application = QApplication([])
    # Where fontconfig knows of no fonts, Qt draws with none of those that are beside it.
    known = {FONT, QFontInfo(application.font()).family()} & {*QFontDatabase.families()}
    if not known and "QT_QPA_FONTDIR" in os.environ:
        for file in Path(os.environ["QT_QPA_FONTDIR"]).glob("*.ttf"):
            QFontDatabase.addApplicationFont(str(file))
        application.setFont(QFont(FONT, application.font().pointSize()))
    sitting = Sitting(application, options)
    workspace = sitting.workspace
    acts: dict[str, Callable[[], None]] = {
        "build": sitting.build,
        "run": sitting.run,
        "compare": sitting.compare,
        "verdict": sitting.verdict,
        "attribute": sitting.attribute,
        "profile": lambda: sitting.study(workspace.breakdowns.profile, "profile"),
        "checklist": lambda: sitting.study(workspace.checklists.check, "checklist"),
        "sweep": sitting.sweep,
        "bench": sitting.bench,
        "generate": sitting.generate,
    }
    for name, act in acts.items():
        sitting.attempt(name, act)
        if name != "run" and workspace.run.active and name != "compare":
            sitting.attempt(f"after {name}", sitting.idle)
    for size in SIZES:
        for theme in THEMES:
            sitting.attempt(f"{theme} {size}", lambda t=theme, s=size: sitting.sheet(t, s))
    sitting.window.close()
    print(f"{len(sitting.failures)} failures", *sitting.failures, sep="\n")
    return 1 if sitting.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
