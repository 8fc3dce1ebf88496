"""Charts of sessions in a notebook: ``draw(session, "step_time")`` returns an inline SVG."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import sessions
from sessions.model import Session
from sessions.notebook import OpenedSession
from workbench import plot_export
from workbench.plots import Run
from workbench.titles import Titles

Source = OpenedSession | Session | str | os.PathLike[str]


@dataclass(frozen=True)
class Drawing:
    """A chart, which notebooks show as the SVG that it is."""

    runs: Sequence[Run]
    plot: str
    options: Mapping[str, str]
    size: tuple[int, int]

    def _repr_svg_(self) -> str:
        """Return the chart as SVG."""
        chart = plot_export.find_plot(self.plot, self.runs, self.options)
        return plot_export.plot_svg(chart, self.runs, self.size, options=self.options).decode()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the chart as PNG, SVG, PDF or CSV, by the suffix; raises ``ExportError``."""
        return plot_export.export_plot(self.plot, self.runs, path, self.size, options=self.options)


def draw(
    source: Source | Sequence[Source],
    plot: str,
    *,
    size: tuple[int, int] = plot_export.SIZE,
    **options: str,
) -> Drawing:
    """Return the chart of one session or of several, by the names of ``workbench export --plot``.

    Raises ``ExportError`` if there is nothing to show, or no such plot or option.
    """
    several = isinstance(source, Sequence) and not isinstance(source, str)
    sources: list[Source] = list(source) if several else [source]  # type: ignore[arg-type,list-item]
    runs = [_run(one_source, number) for number, one_source in enumerate(sources)]
    chart = plot_export.find_plot(plot, runs, options)
    plot_export.ensure_application()
    if reason := chart.can_show(runs):
        raise plot_export.ExportError(f"Cannot draw {plot}: {reason}")
    return Drawing(runs, plot, options, size)


def _run(source: Source, number: int) -> Run:
    label = ""
    if isinstance(source, str | os.PathLike):
        source = sessions.open(source)
    if isinstance(source, OpenedSession):
        label, source = source.path.stem, source.session
    return Run(source, label, number, titled=Titles(source.titles).of)
