"""Every paired comparison: its verdict, its interval over time, and if its numbers are right."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.studies import prediction
from sessions.verdicts.multiple_comparisons import side_by_side
from sessions.verdicts.verdict_tables import numerics_table, verdicts_table
from sessions.verdicts.verdict_words import (
    headline,
    memory_words,
    numerics_lines,
    ratio_line,
    remarks,
    standing,
)
from workbench.plots import Run
from workbench.report._section import Chart, Heading, Parts, Section, Words, numbered, tone


def parts(runs: Sequence[Run]) -> Parts:
    """Yield a table if there are several, then each one separately."""
    (run,) = runs
    comparisons = side_by_side(run.session.comparisons)
    if len(comparisons) > 1:
        yield verdicts_table(run.session.comparisons)
    titles = numbered([" against ".join(comparison.arms[::-1]) for comparison in comparisons])
    for index, (comparison, title) in enumerate(zip(comparisons, titles, strict=True)):
        yield Heading(title)
        yield Words([headline(comparison)], tone(comparison))
        lines = [
            ratio_line(comparison),
            prediction.outcome(comparison),
            standing(comparison),
            *remarks(comparison),
        ]
        lines += numerics_lines(comparison, short=True)
        for side in "AB":
            if memory := memory_words(comparison, side, run.session.segments):
                lines.append(f"{side}: {memory}")
        yield Words([line for line in lines if line])
        if (errors := numerics_table(comparison)).rows:
            yield errors
        yield Chart("verdict", [run.changed(comparison=index)])


SECTION = Section(
    name="verdicts",
    title="Verdicts",
    help=__doc__ or "",
    order=20,
    parts=parts,
    has=lambda session: bool(session.comparisons),
    nothing="No two configurations were compared in alternating blocks.",
)
