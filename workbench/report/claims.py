"""Claims of the documents and measurements: holds, does not hold, or the reason for neither."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.studies.claims import count, newest, summary_table
from workbench.plots import Run
from workbench.report._section import Parts, Section, Words


def parts(runs: Sequence[Run]) -> Parts:
    """Yield the number of claims that hold, then a row for each."""
    (run,) = runs
    rows = list(newest(run.session).values())
    yield Words([f"{count(rows)}."])
    yield summary_table(rows, "Claimed and measured")


SECTION = Section(
    name="claims",
    title="Claims of the documents",
    help=__doc__ or "",
    order=30,
    parts=parts,
    has=lambda session: bool(newest(session)),
    nothing="No claim of a document was measured.",
)
