"""Metrics that the model reports: load of its experts, depths, ranks, entropies, gates."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.model import Session
from workbench.plots import PLOTS, Run
from workbench.report._section import Chart, Parts, Section

_PLOT = "model_metrics"


def parts(runs: Sequence[Run]) -> Parts:
    """Yield a chart for each metric."""
    for metric in PLOTS[_PLOT].choices(runs).get("metric", ()):
        yield Chart(_PLOT, runs, {"metric": metric})


def _has(session: Session) -> bool:
    return any(segment.metrics for segment in session.segments)


SECTION = Section(
    name="model",
    title="Model metrics",
    help=__doc__ or "",
    order=100,
    parts=parts,
    has=_has,
    nothing="No model reported metrics.",
)
