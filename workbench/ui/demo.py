"""The guided demo: runs a model, switches optimizations on, and measures a verdict on each.

It acts through the workspace as the user would, so it shows the real behaviour of the window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
from PySide6.QtCore import QObject, QTimer, Signal

from sessions.model import Configuration, Session
from sessions.storage import atomic_write
from sessions.tables import segments_table
from sessions.verdicts import statistics
from sessions.verdicts.verdict_words import summary_sentence
from workbench import protocol
from workbench.plot_export import ExportError, export_plot
from workbench.plots import Run
from workbench.theming import fonts
from workbench.ui.state import config_edit
from workbench.ui.workspace import Workspace

if TYPE_CHECKING:
    from workbench.ui.panels.failure import Banner
    from workbench.ui.window import MainWindow

FAMILY = "hydra"
STEPS = 30  # steady steps of each configuration before the demo goes on
SECONDS = 5.0  # longest time per configuration, on a slow machine
BUDGET_S = {"cpu": 12.0, "cuda": 6.0}  # budget of a verdict: a GPU's differences are clearer
MOST_MORE_S = 20.0  # longest continuation, once, of an undecided verdict
PERIOD_MS = 100
BATCH = {"cpu": 1, "cuda": 2}  # by device: small, so that the first verdict comes within a minute


@dataclass
class Act:
    """Act of the demo: a name, the choices of toggles, and why they help."""

    title: str
    choices: dict[str, str]
    reason: str


@dataclass
class Outcome:
    """Result of the demo: sentences, files and failures."""

    session: Session
    verdicts: list[str] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    failures: list[protocol.Failure] = field(default_factory=list)
    interrupted: bool = False


class Stage(Protocol):
    """Interface of the window that the demo uses."""

    def caption(self, sentence: str, detail: str) -> None:
        """Explain what is happening."""

    def bring(self, panel: str) -> None:
        """Show a panel in front."""

    def reveal(self, toggle: str) -> None:
        """Scroll to a toggle."""

    def settled(self) -> bool:
        """Return True if everything that arrived is shown."""


class WindowStage:
    """Stage in the main window, with the caption as a banner."""

    def __init__(self, window: MainWindow) -> None:
        self._window = window
        self._banner: Banner | None = None

    def caption(self, sentence: str, detail: str) -> None:
        """Replace the caption."""
        if self._banner is not None:
            self._window.failures.remove(self._banner)  # the user may have dismissed it
        self._banner = self._window.failures.show_banner("info", sentence, detail)

    def bring(self, panel: str) -> None:
        """Show a panel in front."""
        self._window.dock_area.bring(panel)

    def reveal(self, toggle: str) -> None:
        """Scroll to a toggle."""
        self._window.toggles.reveal(toggle)

    def settled(self) -> bool:
        """Return True if the window shows everything that arrived."""
        return self._window.settled()


def acts(device: str) -> list[Act]:
    """Return changes that make a training step clearly faster on a device of this type."""
    fused = Act(
        "Fused AdamW",
        {"adamw": "fused"},
        "It updates all weights in one pass over memory, not in several passes for each tensor.",
    )
    if device != "cuda":
        return [fused]
    graphs = Act(
        "Fused AdamW and CUDA graphs",
        {"adamw": "fused", "cuda_graphs": "on"},
        "The GPU replays the step as one graph and no longer waits for each kernel launch.",
    )
    half = Act(  # second: a step that waits for launches hardly gains by faster kernels
        "BF16 mixed precision",
        {"precision": "amp_bf16"},
        "Tensor cores multiply BF16 numbers many times faster than FP32.",
    )
    return [graphs, half]


class Demo(QObject):
    """Sequence of acts; ``ended`` is emitted last, also after a failure."""

    judged = Signal(str)  # the sentence of a verdict
    ended = Signal()

    def __init__(
        self, workspace: Workspace, folder: Path, report: Callable[[str], None], stage: Stage
    ) -> None:
        super().__init__(workspace)
        self._workspace = workspace
        self._folder = folder
        self._file = folder / "demo.h5"
        self._report = report
        self._stage = stage
        self.outcome = Outcome(workspace.session.shown)
        self._script = self._play()
        self._timer = QTimer(self)
        self._timer.timeout.connect(self._advance)
        workspace.failures.reported.connect(self._failed)

    def start(self) -> None:
        """Begin as soon as the runner is ready."""
        self._report("Starting the runner; the first verdict comes within a minute.")
        self._stage.caption("The demo starts a runner: the process that builds and measures.", "")
        self._timer.start(PERIOD_MS)

    def interrupt(self) -> None:
        """End the demo now; finished parts are not undone."""
        if self._timer.isActive():
            self.outcome.interrupted = True
            self._end()

    def _advance(self) -> None:
        workspace = self._workspace
        failed = self.outcome.failures and not workspace.run.active
        if workspace.run.state == "dead" or failed or next(self._script, "over") == "over":
            self._end()

    def _play(self) -> Iterator[None]:
        """Run the script; each ``yield`` waits for the next look at the state."""
        workspace = self._workspace
        while workspace.run.state != "idle" or workspace.configuration.catalogue is None:
            yield
        catalogue = workspace.configuration.catalogue
        configuration = self._build(catalogue)
        text = f"HYDRA {configuration.preset} trains on {catalogue.device_title}"
        self._report(f"{text}, without optimizations.")
        self._stage.caption(
            f"{text}, without optimizations.",
            "Each dot under Step time is one training step. Shaded steps are warm-up and do not "
            "count.",
        )
        workspace.runs.pairing_share = 0.0  # the verdict pairs, with more blocks
        workspace.runs.start()
        yield from self._measure(configuration)
        for act in acts(catalogue.device):
            before = workspace.run.running or configuration
            workspace.configuration.choose(act.choices, act.title)
            self._stage.reveal(next(iter(act.choices)))
            self._report(f"Switching on: {act.title}.")
            self._stage.caption(
                f"{act.title} is switched on while the model runs.",
                f"{act.reason} A new segment begins in the plots.",
            )
            after = config_edit.with_toggles(before, act.choices)
            yield from self._measure(after)
            yield from self._judge(act, before, after)
        workspace.run.stop()
        while workspace.run.active:
            yield
        yield from self._keep()

    def _build(self, catalogue: protocol.Catalogue) -> Configuration:
        """Choose the plain model with its settings for this device."""
        configuration = config_edit.first(catalogue)
        assert configuration is not None
        configuration = config_edit.with_family(catalogue, configuration, FAMILY)
        configuration = config_edit.with_workload(catalogue, configuration, "train")
        toggles = {toggle.name: toggle.options[0].name for toggle in catalogue.toggles}
        settings = {**configuration.settings, "batch": BATCH[catalogue.device]}
        configuration = msgspec.structs.replace(configuration, toggles=toggles, settings=settings)
        self._workspace.configuration.edit(configuration)
        return configuration

    def _measure(self, configuration: Configuration) -> Iterator[None]:
        """Wait until the configuration has run long enough to be seen in the plots."""
        workspace = self._workspace
        while not (workspace.run.state == "running" and workspace.run.running == configuration):
            yield
        segment = workspace.session.shown.segments[-1]
        while len(statistics.steady_ms(segment)) < STEPS:
            times = segment.steps["t_s"]
            if len(times) and times[-1] - times[0] > SECONDS:
                return
            yield

    def _judge(self, act: Act, before: Configuration, after: Configuration) -> Iterator[None]:
        """Compare the two configurations and say the verdict."""
        verdicts, stage = self._workspace.verdicts, self._stage
        self._report("Comparing both in random pairs of short blocks, so that drift cancels.")
        stage.caption(
            f"Verdict on {act.title}: both configurations alternate in random order.",
            "Slow drift of the machine cancels within each pair. The interval narrows until it is "
            "clear which is faster. The results of both are compared with a reference.",
        )
        stage.bring("verdict")
        budget_s, build_count = verdicts.budget_s, verdicts.build_count
        catalogue = self._workspace.configuration.catalogue
        assert catalogue is not None
        verdicts.budget_s, verdicts.build_count = BUDGET_S[catalogue.device], 1
        verdicts.judge(before, after)
        verdicts.budget_s, verdicts.build_count = budget_s, build_count
        yield from self._await_verdict()
        comparison = verdicts.newest
        if comparison is not None and comparison.verdict == "UNDECIDED":
            if verdicts.more_s() <= MOST_MORE_S:
                verdicts.measure_more()
                yield from self._await_verdict()
            comparison = verdicts.newest
        if comparison is None:  # a failure says why
            return
        sentence = f"{act.title}: {summary_sentence(comparison)}."
        self.outcome.verdicts.append(sentence)
        self.judged.emit(sentence)
        stage.reveal(next(iter(act.choices)))
        stage.caption(
            sentence,
            "Change any toggle on the left and press Verdict (F8) to judge it the same way.",
        )

    def _await_verdict(self) -> Iterator[None]:
        workspace = self._workspace
        while (
            workspace.verdicts.busy
            or workspace.measurements.resumes
            or workspace.run.state != "running"
        ):
            yield

    def _keep(self) -> Iterator[None]:
        """Save the session and export its charts and its table."""
        workspace = self._workspace
        workspace.session.show_live()
        workspace.session.describe("Demo: HYDRA, training", workspace.session.shown.notes)
        workspace.session.save(self._file)
        while not (workspace.session.path == self._file and self._stage.settled()):
            yield
        self._export()

    def _export(self) -> None:
        session = self.outcome.session = self._workspace.session.shown
        comparison = self._folder / "comparison.md"
        runs = [Run(session)]
        try:
            atomic_write.write(comparison, segments_table(session).to_markdown().encode())
            charts = [
                export_plot("step_time", runs, self._folder / f"step_time{suffix}")
                for suffix in ((".png", ".svg", ".pdf") if fonts.exist() else (".svg",))
            ]
        except (OSError, ExportError) as error:
            self._failed(protocol.Failure(kind="unwritten", sentence=str(error)))
            return
        self.outcome.paths = [self._file, *charts, comparison]

    def _failed(self, failure: protocol.Failure) -> None:
        if failure.kind != protocol.JOURNAL:  # a journal's failure ends no run
            self.outcome.failures.append(failure)
        self._report(failure.sentence_with_fix)

    def _end(self) -> None:
        self._timer.stop()
        self.ended.emit()
