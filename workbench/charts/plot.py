"""The descriptor of a plot, and the runs that it is drawn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import ArrayLike

from sessions.model import Segment, Session, Study
from workbench.charts.drawn import MOST_SEGMENTS

if TYPE_CHECKING:
    from workbench.charts.canvas import Canvas
    from workbench.charts.style import Style

Kept = TypeVar("Kept")


@dataclass
class Run:
    """One session as a plot shows it: its label, its colour, and which of its segments.

    It keeps what plots derive from the session (tracks, rolling percentiles), so that several plots
    share them and drawing anew is cheap. ``segments`` are numbers; None is all of them. The
    ``selected`` one is tinted.
    """

    session: Session
    label: str = ""
    color: int = 0
    segments: tuple[int, ...] | None = None
    selected: int | None = None
    comparison: int = -1  # which of the session's paired comparisons; -1: the last requested
    titled: Callable[[str], str] = field(default=str, repr=False, compare=False)  # names in texts
    _kept: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def title(self) -> str:
        """The label, or else the session's title."""
        return self.label or self.session.title

    def alone(self, study: Study) -> Run:
        """Return the run as if the session had that study only, so that plots show it."""
        session = replace(self.session, studies=[study])
        return replace(self, session=session, _kept={})

    def chosen(self) -> list[Segment]:
        """Return the segments to show, in order: the newest ``MOST_SEGMENTS`` if none was named."""
        segments = self.session.segments
        if self.segments is None:
            return segments[-MOST_SEGMENTS:]
        return [segments[number] for number in self.segments if 0 <= number < len(segments)]

    def keep(self, key: Any, make: Callable[[], Kept]) -> Kept:
        """Return the value stored under ``key``, made at its first use."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]  # type: ignore[no-any-return]


def note_beside_title(plot_item: Canvas, text: str) -> None:
    """Write beside the plot's title what is left out of it."""
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
