"""First page of a report: a sentence and a chart for every finding, wrong results first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sessions import numerics
from sessions.model import Session, Study
from sessions.numbers import counted, moment, number
from sessions.studies import breakdown, checklist, claims, next_steps, rank_scaling, sweep
from sessions.studies.attribution import words as attribution_words
from sessions.studies.optimization import words as optimization_words
from sessions.verdicts import statistics
from sessions.verdicts.background import is_background
from sessions.verdicts.multiple_comparisons import side_by_side
from sessions.verdicts.verdict_words import summary_sentence
from workbench.plots import Run
from workbench.report._section import BAD, Chart, Part, Parts, Section, Words, tone

MOST_CHARTS = 6  # on the first page
NOTE = "note"  # the kind of an event that a person wrote


def parts(runs: Sequence[Run]) -> Parts:
    """Yield a sentence with a chart for each measurement, and what to try next."""
    (run,) = runs
    session = run.session
    count = len(session.segments)
    device = session.environment.get("device", "an unknown device")
    yield Words([f"{moment(session.created)}, {device}: {counted(count, 'segment')}."])
    yield from _notes(session)
    yield from _wrong(session)
    charts = 0
    for part in _findings(run):
        charts += isinstance(part, Chart)
        if charts <= MOST_CHARTS or not isinstance(part, Chart):
            yield part
    if steps := next_steps.suggest(session)[:3]:
        yield Words([f"Try next: {step.text}." for step in steps])


def _notes(session: Session) -> Iterator[Words]:
    if session.notes:
        yield Words(session.notes.splitlines())
    notes = [event for event in session.events if event.kind == NOTE]
    if notes:
        yield Words([f"{event.t_s:.0f} s: {event.text}" for event in notes])


def _wrong(session: Session) -> Iterator[Words]:
    for segment in session.segments:
        if numerics.are_wrong(segment.ledger):
            yield Words([f"{segment.title}: wrong numbers: {numerics.text(segment.ledger)}"], BAD)


def _findings(run: Run) -> Iterator[Part]:
    session = run.session
    for index, comparison in enumerate(side_by_side(session.comparisons)):
        arms = " against ".join(comparison.arms[::-1])
        yield Words([f"{arms}: {summary_sentence(comparison)}."], tone(comparison))
        if not is_background(comparison):
            yield Chart("verdict", [run.changed(comparison=index)])
    if newest := list(claims.newest(session).values()):
        yield Words([f"Claims of the documents: {claims.count(newest)}."])
    for study in session.studies:
        yield from _study(run, study)
    if not session.comparisons and not session.studies:
        yield from _steps(run)


def _study(run: Run, study: Study) -> Iterator[Part]:
    if study.kind == checklist.KIND:
        failed = any(row.status == checklist.FAIL for row in checklist.rows(study))
        yield Words([f"Checklist: {checklist.headline(study)}."], BAD if failed else "")
    elif study.kind == optimization_words.KIND:
        yield Words([f"Best configuration: {optimization_words.headline(study)}."])
        yield Chart("pareto", [run.alone(study)])
    elif study.kind == attribution_words.KIND:
        yield Words([f"Attribution, {study.title}: {attribution_words.headline(study)}."])
        yield Chart("attribution", [run.alone(study)])
    elif study.kind == breakdown.KIND and "kernels" in study.tables:
        sentence = next(iter(breakdown.words(study)), "")
        yield Words([f"Profile, {study.title}: {sentence}"])
        yield Chart("breakdown", [run.alone(study)])
    elif study.kind == rank_scaling.KIND:
        tone_of_study = BAD if rank_scaling.wrong_points(study) else ""
        yield Words([f"Scaling over ranks: {rank_scaling.headline(study)}."], tone_of_study)
        if rank_scaling.curves(study):
            yield Chart("scaling", [run.alone(study)])
    elif study.kind == sweep.KIND and sweep.dimensions(study) == 1:
        yield Words([f"Sweep over {sweep.field_title(study)}: {study.title}."])
        yield Chart("sweep_time", [run.alone(study)])


def _steps(run: Run) -> Iterator[Part]:
    """State the step time of each segment where nothing was compared."""
    lines = []
    for segment in run.session.segments:
        summary = statistics.summarize(statistics.steady_ms(segment))
        if summary.n:
            median = number(summary.median)
            lines.append(f"{segment.title}: {median} ms a step (median of {summary.n:,}).")
    if lines:
        yield Words(lines)
        yield Chart("step_time", [run])


SECTION = Section(
    name="overview",
    title="Findings",
    help=__doc__ or "",
    order=10,
    parts=parts,
    has=lambda session: True,
    nothing="",
)
