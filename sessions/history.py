"""Step time over the commits of a project: the ratio of each session to a common baseline.

A session of ``workbench check`` contains a paired comparison of a commit with the baseline, and so
an interval. Two sessions that ran at different times have no interval: their ratio is *unpaired*,
and the history claims no step from it. It also claims no step between ratios to different baselines
or of different machines, and none if the verdict of a comparison rejects its interval.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sessions.errors import SessionError
from sessions.model import PairedComparison, Segment, Session
from sessions.numbers import STEP_TIME, Cell, interval_cells, moment
from sessions.tables import Column, Table
from sessions.verdicts import work
from sessions.verdicts.arm_results import wrong_arms
from sessions.verdicts.builds import LEAST_BUILDS
from sessions.verdicts.comparison import choose
from sessions.verdicts.ratios import PAIRED, UNPAIRED, machine
from sessions.verdicts.regression import MODEL_COMMIT
from sessions.verdicts.statistics import steady_ms, summarize
from sessions.verdicts.verdict import is_rejected, region_of
from sessions.verdicts.verdict_words import verdict_word

SLOWER, FASTER = "slower", "faster"
_VERDICTS = ("FASTER", "SLOWER", "SAME", "UNDECIDED")


@dataclass(frozen=True)
class Point:
    """One commit: its step time over the baseline's, with a 95 % interval if it is paired.

    ``baseline``: the denominator of the ratio. ``basis``: ratios of points with an equal basis can
    be compared; empty if no other point's can. ``wrong``: its results are out of tolerance.
    ``builds``: how often its comparison started both commits. ``step``: "slower" or "faster" than
    the previous commit of the same basis; empty if neither is shown.
    """

    title: str
    commit: str
    created: float
    ratio: float
    low: float = math.nan
    high: float = math.nan
    source: str = UNPAIRED
    region: float = 0.0
    baseline: str = ""
    basis: str = ""
    wrong: bool = False
    builds: int = 1
    step: str = ""


def history(sessions: Sequence[Session], titles: Sequence[str]) -> tuple[list[Point], int]:
    """Return a point for each session of the newest's configuration, and how many were left out.

    Points are in the order in which the sessions were created.
    """
    chosen = []
    for session, title in sorted(
        zip(sessions, titles, strict=True), key=lambda pair: pair[0].created
    ):
        try:
            chosen.append((session, title, _segment_of(session)))
        except SessionError:
            continue
    if not chosen:
        return [], len(sessions)
    newest = chosen[-1][2]
    same = [row for row in chosen if _is_same(row[2], newest)]
    first_title, base_ms = same[0][1], summarize(steady_ms(same[0][2])).median
    points = [_point(*row, first_title, base_ms) for row in same]
    points = [point for point in points if math.isfinite(point.ratio)]
    return _with_steps(points), len(sessions) - len(points)


def history_table(points: Sequence[Point]) -> Table:
    """Return one row for each commit."""
    columns = [Column("session"), Column("commit"), Column("measured")]
    columns += [Column(name, STEP_TIME) for name in ("ratio", "ratio from", "ratio to")]
    columns += [Column("baseline"), Column("basis"), Column("step")]
    rows: list[list[Cell]] = []
    for point in points:
        cells = interval_cells(point.ratio, point.low, point.high, point.region)
        commit = work.short_commit(point.commit) or None
        row: list[Cell] = [point.title, commit, moment(point.created)]
        rows.append([*row, *cells, point.baseline, point.source, step_text(point) or None])
    notes = []
    if any(point.source == UNPAIRED for point in points[1:]):
        notes.append(
            "An unpaired ratio proves nothing: the baseline was measured at a different time."
        )
    if len({point.basis for point in points if point.basis}) > 1:
        notes.append(
            "Steps are shown only between ratios to the same baseline on the same machine."
        )
    is_of_few_builds = any(point.basis and point.builds < LEAST_BUILDS for point in points)
    if any(point.step for point in points) and is_of_few_builds:
        notes.append(
            "Where a check started both commits once, a step may be a difference between two "
            f"processes: its interval does not include that. check --builds {LEAST_BUILDS} does."
        )
    return Table("Step time over commits", columns, rows, notes)


def step_text(point: Point) -> str:
    """Return the step of a point, and that its results are wrong; empty if there is neither."""
    return ", ".join(filter(None, (point.step, "WRONG results" if point.wrong else "")))


def _segment_of(session: Session) -> Segment:
    """Return the current commit's segment of a check; else the one with the most steady steps."""
    comparison = _paired_of(session)
    if comparison is not None:
        return session.segments[comparison.segment_indices[1]]
    return choose(session)


def _paired_of(session: Session) -> PairedComparison | None:
    """Return the last comparison of two commits of one configuration, if there is one."""
    for comparison in reversed(session.comparisons):
        if comparison.facts.get("identical"):  # two builds of one commit
            continue
        arms = work.segments_of(session, comparison)
        ends = comparison.ratio, comparison.low, comparison.high
        is_known = all(map(math.isfinite, ends)) and verdict_word(comparison) in _VERDICTS
        if len(arms) == 2 and is_known and _is_same(*arms):
            return comparison
    return None


def _is_same(first: Segment, second: Segment) -> bool:
    """Return True if two configurations differ by the model's file alone."""
    is_same_work = not work.difference_of_segments(first, second)[0]
    return is_same_work and first.configuration.toggles == second.configuration.toggles


def _point(
    session: Session, title: str, segment: Segment, first_title: str, base_ms: float
) -> Point:
    commit = str(segment.ledger.get(MODEL_COMMIT) or session.environment.get(work.COMMIT, ""))
    comparison = _paired_of(session)
    if comparison is not None:
        ends = comparison.ratio, comparison.low, comparison.high
        return Point(
            title,
            commit,
            session.created,
            *ends,
            source=PAIRED,
            region=region_of(comparison),
            baseline=_baseline(comparison),
            basis="" if is_rejected(comparison) else _basis(session, comparison),
            wrong="B" in dict(wrong_arms(comparison)),
            builds=int(comparison.facts.get("builds", 1)),
        )
    median = summarize(steady_ms(segment)).median
    ratio = median / base_ms if base_ms > 0 else math.nan
    return Point(title, commit, session.created, ratio, baseline=first_title)


def _basis(session: Session, comparison: PairedComparison) -> str:
    """Return the baseline and the machine of a ratio, as text that can be compared."""
    return f"{_baseline(comparison)} on {machine(session.environment)}"


def _baseline(comparison: PairedComparison) -> str:
    """Return the name of the first arm; files of other programs may lack it."""
    return next(iter(comparison.arms), "")


def _with_steps(points: Sequence[Point]) -> list[Point]:
    """Mark where the interval of a point excludes that of the point before it of its basis."""
    marked: list[Point] = []
    last: dict[str, Point] = {}
    for point in points:
        step, before = "", last.get(point.basis)
        if point.basis:
            if before is not None and point.low > before.high * (1 + point.region):
                step = SLOWER
            elif before is not None and point.high * (1 + point.region) < before.low:
                step = FASTER
            last[point.basis] = point
        marked.append(dataclasses.replace(point, step=step))
    return marked
