"""The descriptor of a report's section, and its parts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sessions.model import PairedComparison, Session, Study
from sessions.tables import Table
from sessions.verdicts.arm_results import wrong_arms
from sessions.verdicts.verdict_words import verdict_word
from workbench.plots import Run

GOOD, BAD, WARNING = "good", "bad", "warning"
_TONES = {"FASTER": GOOD, "SLOWER": BAD, "UNDECIDED": WARNING}


@dataclass(frozen=True)
class Heading:
    """The heading of one session, or of one of its studies."""

    text: str


@dataclass(frozen=True)
class Words:
    """Lines of text; the ``tone`` is "good", "bad", "warning" or none."""

    lines: Sequence[str]
    tone: str = ""


@dataclass(frozen=True)
class Script:
    """Text to be copied unchanged."""

    text: str


@dataclass(frozen=True)
class Chart:
    """A plot of some runs; if it has nothing to show, the page shows the reason."""

    plot: str
    runs: Sequence[Run]
    options: Mapping[str, str] = field(default_factory=dict)


Part = Heading | Words | Script | Chart | Table
Parts = Iterator[Part]


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of the page: made by ``parts`` of those runs that ``has`` something to say.

    ``nothing`` says, in one sentence, why there is no such section where no run has. ``together``
    sections are made of all runs at once; the others of each by itself.
    """

    name: str
    title: str
    help: str
    order: int  # sections appear in ascending order
    parts: Callable[[Sequence[Run]], Parts]
    has: Callable[[Session], bool]
    nothing: str
    together: int = 0  # so many sessions at least, and all of them at once
    most: float = math.inf  # so many sessions at most

    def why_not(self, runs: Sequence[Run]) -> str:
        """Return why the page cannot have this section; empty if it can."""
        able = sum(self.has(run.session) for run in runs)
        return "" if max(1, self.together) <= able <= self.most else self.nothing

    def made(self, runs: Sequence[Run]) -> Parts:
        """Yield the parts; of several sessions each session's parts come under its title."""
        able = [run for run in runs if self.has(run.session)]
        if self.together:
            yield from self.parts(able)
            return
        for run, title in zip(able, numbered([run.title for run in able]), strict=True):
            if len(runs) > 1:
                yield Heading(title)
            yield from self.parts([run])


def numbered(titles: Sequence[str]) -> list[str]:
    """Return the titles, equal ones told apart by a number: "a", "a (2)"."""
    counts: dict[str, int] = {}
    distinct = []
    for title in titles:
        counts[title] = counts.get(title, 0) + 1
        distinct.append(title if counts[title] == 1 else f"{title} ({counts[title]})")
    return distinct


def titled_studies(session: Session, kind: str) -> list[Study]:
    """Return the session's studies of one kind under distinct titles."""
    originals = studies(session, kind)
    titles = numbered([study.title for study in originals])
    return [
        dataclasses.replace(study, title=title)
        for study, title in zip(originals, titles, strict=True)
    ]


def studies(session: Session, kind: str) -> list[Study]:
    """Return the session's studies of one kind."""
    return [study for study in session.studies if study.kind == kind]


def tone(comparison: PairedComparison) -> str:
    """Return red if an arm's numbers are wrong, however fast it is; none for different models."""
    return BAD if wrong_arms(comparison) else _TONES.get(verdict_word(comparison), "")
