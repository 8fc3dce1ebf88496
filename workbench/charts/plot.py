"""The descriptor of a plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from workbench.charts.drawn import MOST_SEGMENTS
from workbench.charts.runs import Run as Run

if TYPE_CHECKING:
    from workbench.charts.canvas import Canvas
    from workbench.charts.style import Style


def note_beside_title(plot_item: Canvas, text: str) -> None:
    """Write the number of omitted items after the plot's title."""
    header = plot_item.header
    header.subtitle = f"{header.subtitle}, {text}" if header.subtitle else text


Draw = Callable[..., None]  # (plot_item: Canvas, runs: Sequence[Run], style: Style, **options)
DrawnTable = Mapping[str, ArrayLike]


@dataclass(frozen=True)
class Plot:
    """One kind of chart: drawn on screen and on paper by the same function.

    ``can_show(runs)`` is None, or one sentence that says why there is nothing to show. ``table``
    gives the data drawn, not decimated: columns of one length by name. ``options`` are keyword
    arguments that ``draw`` and ``table`` take, with their choices, the default first; ``found``
    gives those whose choices depend on what is shown. A drawing whose ``key`` has changed is made
    anew; numbers that were appended do not need that.
    """

    name: str
    title: str
    help: str
    draw: Draw
    table: Callable[..., DrawnTable]
    can_show: Callable[[Sequence[Run]], str | None]
    axis: str  # "time" (x is the session's clock; may be live) or "value"
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    choices_in: Callable[[Sequence[Run]], Mapping[str, tuple[str, ...]]] = lambda runs: {}
    key: Callable[[Sequence[Run]], object] = lambda runs: None

    def choices(self, runs: Sequence[Run]) -> dict[str, tuple[str, ...]]:
        """Return all options with their choices for these runs."""
        return {**self.choices_in(runs), **self.options}

    def paint(self, plot_item: Canvas, runs: Sequence[Run], style: Style, **options: str) -> None:
        """Draw on an empty canvas, titled."""
        plot_item.header.title = self.title
        self.draw(plot_item, runs, style, **options)
        most = max((len(run.session.segments) for run in runs if run.segments is None), default=0)
        if most > MOST_SEGMENTS:
            note_beside_title(plot_item, f"newest {MOST_SEGMENTS} of {most:,} segments")
