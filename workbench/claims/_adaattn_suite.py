"""AdaAttn's benchmark suite: its four categories, as configurations and what was measured of them.

One row a configuration: mean and standard deviation of the steady steps, peak memory, mean squared
error against the reference where the category asks for it, tokens a second and utilization. The
configurations run one after the other, so that two rows are compared with care: `workbench ab`
gives a verdict on a pair.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from sessions.model import Configuration, Segment, Session
from sessions.sizes import sized
from sessions.studies.attribution.words import rows as study_rows
from sessions.tables import PEAK, Cell, Column, Table
from sessions.verdicts import statistics
from sessions.verdicts.comparison import OWN_PEAK, steady_peak_bytes
from workbench import protocol
from workbench.claims._command import configuration, eager, ladder, on_gpu

IMPLEMENTATIONS, PRECISIONS, MEMORY, SCALABILITY = CATEGORIES = (
    "implementation comparison",
    "precision modes",
    "memory efficiency",
    "scalability",
)
_ADAPTIVE = {"adaptive_rank": "on", "adaptive_precision": "on"}


@dataclass(frozen=True)
class Planned:
    """One command of the suite: its category, and the rows that its segments become, by title."""

    category: str
    command: protocol.Command
    titles: tuple[str, ...]


@dataclass
class _SentCommand:
    """A command that was sent, and where in the session what it left begins."""

    planned: Planned
    segment: int
    study: int
    failures: list[str] = field(default_factory=list)


def planned(catalogue: protocol.Catalogue, seconds: float) -> list[Planned]:
    """Return the suite for the runner's device: small sizes on a CPU."""
    gpu = on_gpu(catalogue)
    precision = {"precision": "bf16"} if gpu else {}
    adaptive_off = {"adaptive_rank": "off", "adaptive_precision": "off"}

    def base(batch: int, tokens: int, **toggles: str) -> Configuration:
        fields = {"max_sequence": max(tokens, 8192), **({} if gpu else {"n_layers": 1})}
        chosen = eager(catalogue, **{**adaptive_off, **toggles})
        return configuration(
            "adaattn",
            "small" if gpu else "tiny",
            chosen,
            batch=batch,
            sequence=tokens,
            model=fields,
        )

    def timed(category: str, title: str, requested: Configuration) -> Planned:
        return Planned(category, protocol.Start(configuration=requested, seconds=seconds), (title,))

    batch, tokens = (4, 1024) if gpu else (1, 128)
    fast = {"triton": "on"} if gpu else {}
    plan = [
        timed(IMPLEMENTATIONS, title, base(batch, tokens, **precision, **toggles))
        for title, toggles in (
            ("standard attention", {"attention": "manual"}),
            ("PyTorch SDPA", {"attention": "sdpa"}),
            ("automatic backend", {"attention": "auto", **fast}),
            ("AdaAttn, adaptive", {"attention": "auto", **fast, **_ADAPTIVE}),
        )
    ]
    for option in ("amp_fp16", "amp_bf16") if gpu else ("amp_bf16",):
        compared = ladder(base(batch, tokens), seconds, precision=option)
        plan.append(Planned(PRECISIONS, compared, ("FP32", option.removeprefix("amp_").upper())))
    for long in (4096, 8192) if gpu else (256, 512):
        for attention in ("manual", "chunked", "auto"):
            requested = base(1, long, **precision, attention=attention)
            plan.append(timed(MEMORY, f"{attention} attention", requested))
    sizes = ((1, 1024), (4, 1024), (16, 1024), (4, 256), (4, 4096))
    for count, long in sizes if gpu else ((1, 64), (4, 64), (1, 256)):
        requested = base(count, long, **precision, **fast)
        plan.append(timed(SCALABILITY, "automatic backend", requested))
    return plan


class Suite:
    """The plan of the suite, for ``workbench.client.headless.run_plan``."""

    allowed_s = math.inf

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: list[Planned] | None = None
        self._session = Session()
        self._sent: list[_SentCommand] = []

    def begin(
        self, catalogue: protocol.Catalogue, session: Session
    ) -> Iterator[protocol.AnyMessage]:
        """Keep the session."""
        self._session = session
        return iter(())

    def next(self, catalogue: protocol.Catalogue) -> protocol.Command | None:
        """Return the next command, None after the last."""
        if self._waiting is None:
            self._waiting = planned(catalogue, self._seconds)
        if not self._waiting:
            return None
        session, planned_command = self._session, self._waiting.pop(0)
        self._sent.append(
            _SentCommand(planned_command, len(session.segments), len(session.studies))
        )
        return planned_command.command

    def on_message(self, message: protocol.AnyMessage) -> Iterator[protocol.AnyMessage]:
        """Keep the reason if a command failed."""
        if isinstance(message, protocol.Failure) and self._sent:
            self._sent[-1].failures.append(message.sentence)
        return iter(())

    def pending_messages(self) -> Iterator[protocol.AnyMessage]:
        """Record nothing between two commands."""
        return iter(())

    def finish(self, why: str = "") -> Iterator[protocol.AnyMessage]:
        """Record nothing at the end."""
        return iter(())

    def on_timeout(self, command: protocol.Command | None) -> bool:
        """Return False: no command is cancelled."""
        return False

    def on_runner_lost(self) -> bool:
        """Return True if commands are left for another runner."""
        return bool(self._waiting)

    def table(self) -> Table:
        """Return a row for each configuration, those that failed with the reason."""
        unscaled: list[tuple[list[Cell], float, list[Cell]]] = []
        for sent in self._sent:
            last = self._session.segments[sent.segment :][: len(sent.planned.titles)]
            mse = self._mse(sent)
            for index, title in enumerate(sent.planned.titles):
                segment = last[index] if index < len(last) else None
                unscaled.append(self._row(sent, title, segment, mse.get(index, math.nan)))
        unit, peaks = sized(peak for _, peak, _ in unscaled)
        columns = [
            Column("category"), Column("configuration"), Column("batch"), Column("tokens"),
            Column("mean", "ms"), Column("std", "ms"), Column("steps"), Column(PEAK, unit),
            Column("MSE against the reference"), Column("tokens/s"), Column("utilization", "%"),
            Column("note"),
        ]  # fmt: skip
        rows = [[*head, peak, *tail] for (head, _, tail), peak in zip(unscaled, peaks, strict=True)]
        return Table("AdaAttn's benchmark suite", columns, rows)

    def _row(
        self, sent: _SentCommand, title: str, segment: Segment | None, mse: float
    ) -> tuple[list[Cell], float, list[Cell]]:
        category, note = sent.planned.category, "; ".join(sent.failures)
        if segment is None:
            head: list[Cell] = [category, title, None, None, None, None, 0]
            return head, math.nan, [mse, None, None, note or "not measured"]
        settings, times = segment.configuration.settings, statistics.steady_ms(segment)
        mean = float(np.mean(times)) if len(times) else math.nan
        std = float(np.std(times, ddof=1)) if len(times) > 1 else math.nan
        tokens = float(segment.ledger.get("tokens_per_step", math.nan))
        sizes: list[Cell] = [str(settings["batch"]), str(settings["sequence"])]
        head = [category, title, *sizes, mean, std, len(times)]
        tail: list[Cell] = [mse, 1e3 * tokens / mean, self._utilization(segment), note]
        # Without what is held for the configurations before, where that is known.
        peak = segment.ledger.get(OWN_PEAK, steady_peak_bytes(segment))
        return head, float(peak), tail

    def _mse(self, sent: _SentCommand) -> dict[int, float]:
        """Return the arms' mean squared errors, by arm."""
        studies = self._session.studies[sent.study :]
        if not isinstance(sent.planned.command, protocol.Attribute) or not studies:
            return {}
        return {int(row["arm"]): float(row["mse"]) for row in study_rows(studies[0], "arms")}

    def _utilization(self, segment: Segment) -> float:
        """Return the device's mean utilization over the steady steps, NaN where it is not known."""
        samples = self._session.telemetry.get("gpu0") or self._session.telemetry.get("cpu")
        steady = segment.steps["t_s"][statistics.steady(segment)]
        if samples is None or "busy" not in samples or not len(steady):
            return math.nan
        inside = (samples["t_s"] >= steady[0]) & (samples["t_s"] <= steady[-1])
        busy = np.asarray(samples["busy"])[inside]
        busy = busy[np.isfinite(busy)]
        return float(np.mean(busy)) if len(busy) else math.nan
