"""The runs that plots are drawn from: sessions, and what plots derive from them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sessions.model import Segment, Session, Study
from workbench.charts.drawn import MOST_SEGMENTS
from workbench.charts.time_axis import TimeAxis, shared_axis

Derived = TypeVar("Derived")


@dataclass
class Run:
    """One session as a plot shows it: its label, its colour, and the segments to show.

    It keeps what plots derive from the session (tracks, rolling percentiles), so that several plots
    share them and redrawing is cheap. ``segments`` are numbers; None means all. The ``selected``
    segment is tinted; ``hidden`` segments take no time on the axis.
    """

    session: Session
    label: str = ""
    color: int = 0
    segments: tuple[int, ...] | None = None
    hidden: frozenset[int] = frozenset()  # left out where ``segments`` is None
    selected: int | None = None
    comparison: int = -1  # index of a paired comparison; -1: the last requested
    titled: Callable[[str], str] = field(default=str, repr=False, compare=False)  # names in texts
    _kept: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def title(self) -> str:
        """The label, or else the session's title."""
        return self.label or self.session.title

    @property
    def axis(self) -> TimeAxis:
        """The time axis, with all that the session has so far."""
        axis = self.keep("time axis", lambda: shared_axis(self.session, self.hidden))
        axis.pull()
        return axis

    def alone(self, study: Study) -> Run:
        """Return the run as if the session had that study only, so that plots show it."""
        session = replace(self.session, studies=[study])
        return self.changed(session=session)

    def changed(self, **changes: Any) -> Run:
        """Return the run with other fields, without what was derived from these."""
        return replace(self, **changes, _kept={})

    def chosen(self) -> list[Segment]:
        """Return the segments to show, in order: the newest ``MOST_SEGMENTS`` if none was named."""
        segments = self.session.segments
        if self.segments is None:
            newest = (s for s in reversed(segments) if s.index not in self.hidden)
            return [*itertools.islice(newest, MOST_SEGMENTS)][::-1]
        return [segments[number] for number in self.segments if 0 <= number < len(segments)]

    def keep(self, key: Any, make: Callable[[], Derived]) -> Derived:
        """Return the value stored under ``key``, made at its first use."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]  # type: ignore[no-any-return]
