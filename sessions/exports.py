"""The tables of a session by name: for the command line, reports and the window alike.

A kind of table that a session has several of (one a profile, one a comparison) gives them in the
order in which they were measured.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sessions.energy import energy_table, has_counter
from sessions.model import KERNELS, Session, Study
from sessions.studies import breakdown, breakdown_tables, checklist, rank_scaling, sweep
from sessions.studies.attribution import words as attribution_words
from sessions.studies.claims import claims_table, newest
from sessions.studies.kernels import kernels_table
from sessions.studies.optimization import words as optimization_words
from sessions.tables import (
    Table,
    environment_table,
    events_table,
    evidence_table,
    facts_table,
    segments_table,
)
from sessions.verdicts.verdict_tables import blocks_table, verdicts_table

_ALL = sys.maxsize  # rows: a file has no limit, unlike a window


@dataclass(frozen=True)
class Export:
    """One kind of table: a description of it, and a function for those of a session.

    ``by`` is the command that measures its content.
    """

    help: str
    tables: Callable[[Session], list[Table]]
    by: str = "run"


def exportable(session: Session) -> dict[str, list[Table]]:
    """Return the tables that this session has, by the name of their kind."""
    tables = {name: export.tables(session) for name, export in EXPORTS.items()}
    return {name: of_kind for name, of_kind in tables.items() if of_kind}


def _tables_of(
    chosen: Callable[[Session], Sequence[Study]], make_table: Callable[[Study], Table]
) -> Callable[[Session], list[Table]]:
    """Return a function for the tables of some studies that have rows."""
    return lambda session: [table for study in chosen(session) if (table := make_table(study)).rows]


def _studies_of(kind: str) -> Callable[[Session], list[Study]]:
    return lambda session: [study for study in session.studies if study.kind == kind]


def _swept(session: Session) -> list[Study]:
    return sweep.sweeps(session.studies)


def _claims(session: Session) -> list[Table]:
    rows = list(newest(session).values())
    return [claims_table(rows, session.title)] if rows else []


def _bench(session: Session) -> list[Table]:
    timed = any(segment.configuration.family == KERNELS for segment in session.segments)
    return [kernels_table(session)] if timed else []


def _of_neighbours(make_table: Callable[[Study, Study], Table]) -> Callable[[Session], list[Table]]:
    """Return a function for tables that compare each profile with the previous one."""

    def tables(session: Session) -> list[Table]:
        profiles = breakdown.profiles(session)
        return [make_table(*sides) for sides in itertools.pairwise(profiles)]

    return tables


_attributed, _checked = _studies_of(attribution_words.KIND), _studies_of(checklist.KIND)
_kernels = functools.partial(breakdown_tables.kernels_table, most=_ALL)
_modules = functools.partial(breakdown_tables.modules_table, depth=_ALL)
_differences = functools.partial(breakdown_tables.difference_table, most=_ALL)

EXPORTS = {
    "segments": Export(
        "every configuration that ran: step times, ratios to the first, peak memory, numbers",
        lambda session: [segments_table(session)] if session.segments else [],
    ),
    "evidence": Export(
        "the requested option of each toggle, whether it took effect, and the evidence",
        lambda session: [table] if (table := evidence_table(session)).rows else [],
    ),
    "facts": Export(
        "other facts of each segment: parameters, FLOPs, loss, compile time ...",
        lambda session: [table] if (table := facts_table(session)).rows else [],
    ),
    "energy": Export(
        "joules per step, and tokens or samples per joule, of each segment; cost and CO2 if set",
        lambda session: [energy_table(session)] if has_counter(session) else [],
    ),
    "verdicts": Export(
        "every paired comparison: ratio, interval, and verdict, corrected for their number",
        lambda session: [verdicts_table(session.comparisons)] if session.comparisons else [],
        by="ab",
    ),
    "blocks": Export(
        "the blocks of each comparison, in the order they ran: pair, median, clock, why void",
        lambda session: [
            blocks_table(comparison) for comparison in session.comparisons if comparison.order
        ],
        by="ab",
    ),
    "effects": Export(
        "an attribution: the effect of each toggle on time and memory",
        _tables_of(_attributed, attribution_words.effects_table),
        by="attribute",
    ),
    "arms": Export(
        "an attribution: each arm that ran, its time over the base's, its memory, its numbers",
        _tables_of(_attributed, attribution_words.arms_table),
        by="attribute",
    ),
    "configurations": Export(
        "an optimization: each configuration that was proposed, with its evidence and numbers",
        _tables_of(optimization_words.optimizations, optimization_words.candidates_table),
        by="optimize",
    ),
    "options": Export(
        "an optimization: each option, whether it was tried, and why not",
        _tables_of(optimization_words.optimizations, optimization_words.options_table),
        by="optimize",
    ),
    "gains": Export(
        "an optimization: best against start and runner-up, and the effect of each change",
        _tables_of(optimization_words.optimizations, optimization_words.verdicts_table),
        by="optimize",
    ),
    "points": Export(
        "a sweep: every size under every arm",
        _tables_of(_swept, sweep.points_table),
        by="sweep",
    ),
    "exponents": Export(
        "a sweep: the exponent of each curve's time, with its interval",
        _tables_of(_swept, sweep.fits_table),
        by="sweep",
    ),
    "scaling": Export(
        "scaling over ranks: efficiency, exposed communication, skew and memory of each kind",
        _tables_of(rank_scaling.scalings, rank_scaling.points_table),
        by="scale",
    ),
    "ranks": Export(
        "scaling over ranks: what each rank did in a step, and its memory",
        _tables_of(rank_scaling.scalings, rank_scaling.ranks_table),
        by="scale",
    ),
    "checks": Export(
        "a checklist: each check, its result, its evidence",
        _tables_of(_checked, checklist.checks_table),
        by="validate",
    ),
    "lines": Export(
        "a checklist: the source lines that its checks found",
        _tables_of(_checked, checklist.lines_table),
        by="validate",
    ),
    "claims": Export(
        "claims of the documents and what was measured",
        _claims,
        by="reproduce",
    ),
    "classes": Export(
        "a profile: time by operator class",
        _tables_of(breakdown.profiles, breakdown_tables.kinds_table),
        by="profile",
    ),
    "kernels": Export(
        "a profile: time by kernel",
        _tables_of(breakdown.profiles, _kernels),
        by="profile",
    ),
    "modules": Export(
        "a profile: time by module, the complete tree",
        _tables_of(breakdown.profiles, _modules),
        by="profile",
    ),
    "roof": Export(
        "a profile: each operator's time against the limit of this device",
        _tables_of(breakdown.profiles, breakdown_tables.achieved_table),
        by="profile",
    ),
    "waits": Export(
        "a profile: the modules before whose kernels the GPU waited",
        _tables_of(breakdown.profiles, breakdown_tables.gaps_table),
        by="profile",
    ),
    "memory": Export(
        "a profile: memory by role: at the peak, maximum, and the estimate",
        _tables_of(breakdown.profiles, breakdown_tables.memory_table),
        by="profile",
    ),
    "changes": Export(
        "two profiles: time by module, B minus A",
        _of_neighbours(_differences),
        by="profile",
    ),
    "memory_changes": Export(
        "two profiles: memory by role, B minus A",
        _of_neighbours(breakdown_tables.memory_difference_table),
        by="profile",
    ),
    "bench": Export(
        "timed kernels of the library and of other libraries",
        _bench,
        by="bench",
    ),
    "events": Export(
        "events by time: toggles, notes, warnings, errors",
        lambda session: [events_table(session)] if session.events else [],
    ),
    "environment": Export(
        "the machine and its software",
        lambda session: [environment_table(session)] if session.environment else [],
    ),
}
