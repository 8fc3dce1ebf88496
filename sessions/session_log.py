"""Log of a session: its events with the runs, verdicts, studies and profiles between them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sessions.columns import Columns, row_count
from sessions.model import Event, Order, PairedComparison, Segment, Session
from sessions.numbers import counted
from sessions.plain_text import capitalized
from sessions.verdicts.background import is_background
from sessions.verdicts.verdict_words import summary_sentence

STUDIES = ("attribute", "optimize", "sweep", "validate", "profile")  # commands, by their type
RUN, VERDICT, STUDY = "run", "verdict", "study"  # kinds of entries that no event has


def log(session: Session, *, running: bool = False) -> list[Event]:
    """Return all that happened, in order of time; the last run has no end while it is running."""
    entries = [*session.events, *_runs(session, running), *_verdicts(session)]
    entries += [
        Event(study.start_s, STUDY, f"{study.kind.capitalize()}: {study.title}")
        for study in session.studies
    ]
    return sorted(entries, key=lambda event: event.t_s)


def segments_of(session: Session, order: int) -> list[Segment]:
    """Return the segments that came of an order, by the order's index."""
    orders = session.orders
    stop = orders[order + 1].segments if order + 1 < len(orders) else len(session.segments)
    return session.segments[orders[order].segments : stop]


def study_segments(session: Session) -> dict[int, int]:
    """Return the order that each segment of a study came of, by the segment's index.

    Claims of documents are a study, whatever commands measure them.
    """
    return {
        segment.index: index
        for index, order in enumerate(session.orders)
        if order.claims is not None or order.command.get("type") in STUDIES
        for segment in segments_of(session, index)
    }


def end_s(segment: Segment) -> float:
    """Return when a segment ended: its last phase, or its last step."""
    if segment.phases:
        return segment.phases[-1].stop_s
    if not isinstance(segment.steps, Columns):
        return segment.start_s  # columns of a file take long to read
    return max([segment.start_s, *segment.steps["t_s"][-1:].tolist()])


def last_s(session: Session) -> float:
    """Return the last known time of a session: of a step, an event or a study; 0 if it is empty."""
    times = [event.t_s for event in session.events] + [study.start_s for study in session.studies]
    times += [end_s(segment) for segment in session.segments]
    for segment in session.segments[-1:]:
        times += segment.steps["t_s"][-1:].tolist()
    return max(filter(math.isfinite, times), default=0.0)


def order_title(session: Session, order: Order) -> str:
    """Return a short text about what the runner did for a command."""
    kind = str(order.command.get("type", ""))
    studies = session.studies[order.studies :]
    if kind in STUDIES and studies:
        return f"{studies[0].kind.capitalize()}: {studies[0].title}"
    if order.claims is not None:
        return capitalized(session.studies[order.claims].title)
    return kind.capitalize() or "Command"


def _runs(session: Session, running: bool) -> Iterator[Event]:
    for index, order in enumerate(session.orders):
        if order.command.get("type") != "start" or not (segments := segments_of(session, index)):
            continue
        yield Event(order.start_s, RUN, f"Run started: {segments[0].configuration.title}")
        if not running or index + 1 < len(session.orders):
            steps = sum(row_count(segment.steps) for segment in segments)
            stop_s = max(end_s(segment) for segment in segments)
            yield Event(stop_s, RUN, f"Run ended: {counted(steps, 'step')}")


def _verdicts(session: Session) -> Iterator[Event]:
    for comparison in session.comparisons:
        if comparison.facts.get("final") and not is_background(comparison):
            yield Event(_verdict_s(session, comparison), VERDICT, _verdict_text(comparison))


def _verdict_s(session: Session, comparison: PairedComparison) -> float:
    """Return when a comparison ended: with the last of its segments."""
    places = comparison.facts.get("segments", ())
    ends = [end_s(session.segments[i]) for i in places if 0 <= i < len(session.segments)]
    return max(ends, default=0.0)


def _verdict_text(comparison: PairedComparison) -> str:
    return f"{' against '.join(comparison.arms[::-1])}: {summary_sentence(comparison)}"
