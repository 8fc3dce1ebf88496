"""What was found, in a few lines: verdicts, claims, checks, and wrong numbers before all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sessions import numerics
from sessions.model import Session
from sessions.numbers import moment
from sessions.studies import attribution_words, checklist, claims, optimization_words
from sessions.verdicts.multiple_comparisons import side_by_side
from sessions.verdicts.verdict_words import summary_sentence
from workbench.plots import Run
from workbench.report._section import BAD, Parts, Section, Words, tone


def parts(runs: Sequence[Run]) -> Parts:
    """One paragraph for each thing that was asked of the session."""
    (run,) = runs
    session = run.session
    count = len(session.segments)
    device = session.environment.get("device", "an unknown device")
    yield Words([f"{moment(session.created)}, {device}: {count} segment{'s' * (count != 1)}."])
    if session.notes:
        yield Words(session.notes.splitlines())
    yield from _wrong(session)
    for one in side_by_side(session.comparisons):
        said = f"{' against '.join(one.arms[::-1])}: {summary_sentence(one)}."
        yield Words([said], tone(one))
    yield from _studied(session)


def _wrong(session: Session) -> Iterator[Words]:
    for segment in session.segments:
        if numerics.are_wrong(segment.ledger):
            yield Words([f"{segment.title}: wrong numbers: {numerics.text(segment.ledger)}"], BAD)


def _studied(session: Session) -> Iterator[Words]:
    found = list(claims.newest(session).values())
    if found:
        yield Words([f"Claims of the documents: {claims.count(found)}."])
    for study in session.studies:
        if study.kind == checklist.KIND:
            failed = any(row.status == checklist.FAIL for row in checklist.rows(study))
            yield Words([f"Checklist: {checklist.headline(study)}."], BAD if failed else "")
        elif study.kind == optimization_words.KIND:
            yield Words([f"Best configuration: {optimization_words.headline(study)}."])
        elif study.kind == attribution_words.KIND:
            yield Words([f"Attribution, {study.title}: {attribution_words.headline(study)}."])


SECTION = Section(
    name="overview",
    title="What was found",
    help=__doc__ or "",
    place=10,
    parts=parts,
    has=lambda session: True,
    nothing="",
)
