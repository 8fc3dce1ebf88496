"""The guided demo: builds HYDRA, runs it, switches three optimizations, saves and exports.

It acts through the workspace as a person would, so what it shows is what the window does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from PySide6.QtCore import QObject, QTimer, Signal

from sessions import numerics
from sessions.model import Segment, Session
from sessions.reproduce import session_hint
from sessions.storage import atomic_write
from sessions.tables import segments_table
from sessions.verdicts import statistics
from sessions.verdicts.multiple_comparisons import side_by_side
from sessions.verdicts.verdict_words import summary_sentence
from workbench import protocol
from workbench.plot_export import ExportError, export_plot
from workbench.plots import Run
from workbench.ui.state import config_edit
from workbench.ui.workspace import Workspace

FAMILY = "hydra"
STEPS = 110  # steady steps of each configuration
SECONDS = 20.0  # at most, on a machine that is slower than we think, or not quiet
PERIOD_MS = 100


@dataclass
class Act:
    """One toggle of the demo: what it says, and the choices that it makes."""

    text: str
    choices: dict[str, str]


@dataclass
class Outcome:
    """What the demo left behind: paths, lines for the person, and what went wrong."""

    session: Session
    paths: list[Path] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    failures: list[protocol.Failure] = field(default_factory=list)
    interrupted: bool = False


def acts(device: str) -> list[Act]:
    """Three toggles that a device of this type can use."""
    if device == "cuda":
        return [
            Act("Triton kernels on", {"triton": "on"}),
            Act("AMP BF16 on top", {"precision": "amp_bf16"}),
            Act("fused AdamW and CUDA graphs", {"adamw": "fused", "cuda_graphs": "on"}),
        ]
    return [
        Act("fused AdamW", {"adamw": "fused"}),
        Act("one RoPE table for all layers", {"rope_cache": "shared"}),
        Act("gradient checkpointing", {"checkpointing": "full"}),
    ]


def well_measured(segment: Segment) -> bool:
    """Return True if it has enough steady steps, and its numbers were checked."""
    enough = len(statistics.steady_ms(segment)) >= STEPS
    return enough and numerics.was_checked(segment.ledger)


class Demo(QObject):
    """Plays the acts one after another; ``ended`` comes last, also after a failure.

    ``settled`` tells whether the window shows all that arrived: the demo ends once it does.
    """

    ended = Signal()

    def __init__(
        self,
        state: Workspace,
        folder: Path,
        say: Callable[[str], None],
        settled: Callable[[], bool],
    ) -> None:
        super().__init__(state)
        self._state = state
        self._folder = folder
        self._file = folder / "demo.h5"
        self._say = say
        self._settled = settled
        self._saving = False
        self._acts: list[Act] = []
        self._segments = 0  # that the demo has asked for
        self.outcome = Outcome(state.session.shown)
        self._timer = QTimer(self)
        self._timer.timeout.connect(self._look)
        state.failures.reported.connect(self._failed)

    def start(self) -> None:
        """Begin as soon as the runner is ready."""
        self._say("starting the runner ...")
        self._timer.start(PERIOD_MS)

    def interrupt(self) -> None:
        """End it now; what has run to its end by then is not undone."""
        if self._timer.isActive():
            self.outcome.interrupted = True
            self._end()

    def _look(self) -> None:
        state = self._state
        if state.run.state == "dead" or (self.outcome.failures and not state.run.active):
            self._end()
        elif self._segments == 0:
            if state.run.state == "idle" and state.configuration.catalogue is not None:
                self._build(state.configuration.catalogue)
        elif state.run.state == "running" and self._measured():
            self._next()
        elif state.run.state == "idle" and self._segments > len(self._acts):
            if not self._saving:
                self._save()
            elif state.session.path == self._file and self._settled():
                self._export()
                self._end()

    def _build(self, catalogue: protocol.Catalogue) -> None:
        configuration = config_edit.first(catalogue)
        assert configuration is not None
        configuration = config_edit.with_family(catalogue, configuration, FAMILY)
        configuration = config_edit.with_workload(catalogue, configuration, "train")
        toggles = {**configuration.toggles, "triton": "off"}
        settings = configuration.settings
        if catalogue.device == "cpu":
            settings = {**settings, "batch": 1}  # short on a slow machine too
        configuration = msgspec.structs.replace(configuration, toggles=toggles, settings=settings)
        self._state.configuration.edit(configuration)
        self._acts = acts(catalogue.device)
        self._segments = 1
        self._say(f"1/4  {FAMILY} {configuration.preset}, training, on {catalogue.device_title}")
        self._state.runs.start()

    def _measured(self) -> bool:
        """Whether the present segment has run long enough, and its numbers were checked."""
        segments = self._state.session.shown.segments
        if len(segments) < self._segments:
            return False
        segment = segments[self._segments - 1]
        times = segment.steps["t_s"]
        return (len(times) and times[-1] - times[0] > SECONDS) or well_measured(segment)

    def _next(self) -> None:
        if self._segments > len(self._acts):
            self._state.run.stop()
            return
        act = self._acts[self._segments - 1]
        self._segments += 1
        self._say(f"{self._segments}/4  {act.text}")
        self._state.configuration.choose(act.choices, act.text)

    def _failed(self, failure: protocol.Failure) -> None:
        if failure.kind != protocol.JOURNAL:  # which ends no run
            self.outcome.failures.append(failure)
        self._say(failure.said)

    def _save(self) -> None:
        self._saving = True
        self._state.session.show_live()
        self._state.session.describe("Demo: HYDRA, training", self._state.session.shown.notes)
        self._state.session.save(self._file)

    def _export(self) -> None:
        session = self.outcome.session = self._state.session.shown
        comparison = self._folder / "comparison.md"
        runs = [Run(session)]
        try:
            atomic_write.write(comparison, segments_table(session).to_markdown().encode())
            charts = [
                export_plot("step_time", runs, self._folder / f"step_time{suffix}")
                for suffix in (".png", ".svg", ".pdf")
            ]
        except (OSError, ExportError) as error:
            self._failed(protocol.Failure(kind="unwritten", sentence=str(error)))
            return
        self.outcome.paths = [self._file, *charts, comparison]
        self.outcome.lines = [
            f"{finding.toggle}={finding.requested}: {finding.status}: {finding.text}"
            for finding in session.segments[-1].evidence
        ]
        self.outcome.lines += [
            f"{' against '.join(one.arms[::-1])}: {summary_sentence(one)}."
            for one in side_by_side(session.comparisons)
        ]
        self.outcome.lines += filter(None, [session_hint(session)])

    def _end(self) -> None:
        self._timer.stop()
        self.ended.emit()
