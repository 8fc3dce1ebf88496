"""The descriptor of a claim: what a document says, its experiment, and the judgement.

Bounds are the document's number with its own rounding: "1.5x" is kept by 1.45 and by all that is
better. A claim holds only where it was measured and its 95 % interval lies within the bounds; it
does not hold where the interval lies outside, or where the faster side computes wrong numbers. With
fewer rounds than a verdict needs it is undecided: their scatter is not known well enough to trust
the interval, however clear it looks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sessions.model import Segment, Session, Study
from sessions.studies.claims import FAILS, HOLDS, NOT_HERE, NOT_MEASURED, UNDECIDED
from sessions.verdicts import verdict as verdicts
from sessions.verdicts.verdict_words import more_text
from workbench import protocol

BUILD_S = 60.0
GPU_CLAIM = "it is about a GPU, but this runner uses the CPU"
CPU_CLAIM = "it is about a CPU, but this runner uses a GPU"

Commands = Callable[[protocol.Catalogue, float], list[protocol.Command]]


class Unmeasured(Exception):  # noqa: N818 - carries its reason
    """The experiment did not give this number: one clause that says why."""


@dataclass(frozen=True)
class Reading:
    """A measured number with the ends of its 95 % interval; both None where it is exact.

    ``rounds``: the number of rounds that the interval is of, if any; with too few its ends are NaN.
    ``seconds``: their time, as the budget counts it. ``of_means``: the interval by the mean of all
    steps, if the number is of median steps and that interval is known.
    """

    value: float
    low: float | None = None
    high: float | None = None
    rounds: int | None = None
    seconds: float = math.nan
    wrong: str = ""  # configurations with wrong numbers: their speed does not count
    note: str = ""
    of_means: tuple[float, float] | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The interval, or the number itself twice where it is exact."""
        if self.low is None or self.high is None:
            return self.value, self.value
        return self.low, self.high


@dataclass(frozen=True)
class Results:
    """The results of one experiment in the session.

    ``studies``: one for each command, None where it made none. ``left_out``: for each command the
    clauses that say what was not measured and why; a clause stands once. ``compile_s``: for each
    command the seconds of its first compilation, 0 where nothing was compiled.
    """

    session: Session
    segments: Sequence[Segment]
    studies: Sequence[Study | None]
    left_out: Sequence[Sequence[str]] = ()
    compile_s: Sequence[float] = ()

    def of(self, commands: Sequence[int]) -> Results:
        """Return what some of the commands left; segments are those of all."""

        def chosen(values: Sequence[Any]) -> list[Any]:
            return [values[index] for index in commands if index < len(values)]

        return Results(
            self.session,
            self.segments,
            chosen(self.studies),
            chosen(self.left_out),
            chosen(self.compile_s),
        )

    @property
    def reasons(self) -> list[str]:
        """Return the omissions and their reasons, by command if there are several."""
        count = len(self.left_out)
        return [
            f"{number} of {count}: {clause}" if count > 1 else clause
            for number, clauses in enumerate(self.left_out, 1)
            for clause in dict.fromkeys(clauses)
        ]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One number of a document. ``read`` raises ``Unmeasured``.

    ``study``: the index of the command that it is read from, or several, None where that is all of
    them. ``least`` and ``most`` are the bounds; at least one is given. ``needs_gpu`` says why it
    cannot be measured on the CPU, ``needs_cpu`` why not on a GPU, where that is so. ``quotes`` are
    the passages of the document, each of one line, whose numbers it measures.
    """

    row: str  # as in the project's list of requirements
    name: str
    says: str  # in the document's own numbers
    unit: str
    read: Callable[[Results], Reading]
    least: float = -math.inf
    most: float = math.inf
    needs_gpu: str = ""
    needs_cpu: str = ""
    study: int | tuple[int, ...] | None = None
    quotes: tuple[str, ...] = ()

    @property
    def commands(self) -> tuple[int, ...] | None:
        """The indices of the commands that it is read from; None where that is all of them."""
        return (self.study,) if isinstance(self.study, int) else self.study


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One or more commands to the runner, and the claims that read what they give.

    ``commands(catalogue, budget_s)``: the device is the catalogue's, the budget that of alternating
    of one command. ``how`` says in words what is measured. ``build_s``: seconds that building for
    one command may take, compiling and tuning included. ``needs_gpu`` and ``needs_cpu`` as of a
    claim. ``priority``: experiments with a lower number are measured before the others, and leave
    them what remains of a limit.
    """

    name: str
    how: str
    commands: Commands
    claims: tuple[Claim, ...]
    build_s: float = BUILD_S
    needs_gpu: str = ""
    needs_cpu: str = ""
    priority: int = 0


@dataclass(frozen=True)
class Omission:
    """A passage of a document, of one line, whose numbers no claim measures, and the reason."""

    quote: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Document:
    """Claims of a document that are measured here, and its omissions with their reasons."""

    name: str
    title: str
    experiments: tuple[Experiment, ...]
    omissions: tuple[Omission, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """A claim and its measurement."""

    experiment: Experiment
    claim: Claim
    verdict: str
    reading: Reading | None = None
    reason: str = ""


def why_not(experiment: Experiment, claim: Claim, device: str) -> str:
    """Return why a claim cannot be measured on a device; empty if it can."""
    if device == "cuda":
        return experiment.needs_cpu or claim.needs_cpu
    return experiment.needs_gpu or claim.needs_gpu


def judge(experiment: Experiment, claim: Claim, device: str, results: Results | None) -> Outcome:
    """Return what an experiment shows of a claim; ``results`` is None if it was not run."""
    if reason := why_not(experiment, claim, device):
        return Outcome(experiment, claim, NOT_HERE, reason=reason)
    if results is None:
        return Outcome(experiment, claim, NOT_MEASURED, reason="the experiment was not run")
    if claim.commands is not None:
        results = results.of(claim.commands)
    try:
        reading = claim.read(results)
    except Unmeasured as error:
        reason = "; ".join([str(error), *results.reasons])
        return Outcome(experiment, claim, NOT_MEASURED, reason=reason)
    if not math.isfinite(reading.value):
        return Outcome(experiment, claim, NOT_MEASURED, reason="the result is not a number")
    if reading.wrong:
        reason = f"{reading.wrong} computed wrong numbers"
        return Outcome(experiment, claim, FAILS, reading, reason)
    verdict, why = _by_bounds(claim, reading)
    left_out = results.reasons if verdict == UNDECIDED else []
    reason = "; ".join(filter(None, (why, reading.note, *left_out)))
    return Outcome(experiment, claim, verdict, reading, reason)


def _by_bounds(claim: Claim, reading: Reading) -> tuple[str, str]:
    """Return the verdict, and what would make an undecided one clearer."""
    if reading.rounds is not None and reading.rounds < verdicts.MIN_PAIRS:
        few = f"measured {reading.rounds} of at least {verdicts.MIN_PAIRS} rounds"
        return UNDECIDED, "; ".join(filter(None, (few, _more_time_clause(claim, reading))))
    verdict = _side(claim, *reading.ends)
    low, high = reading.of_means or reading.ends
    if {verdict, _side(claim, low, high)} == {HOLDS, FAILS}:
        return UNDECIDED, (
            f"by the median step it {verdict}, but "
            f"{verdicts.of_all_steps(f'{low:.3g} to {high:.3g}')}"
        )
    return verdict, _more_time_clause(claim, reading) if verdict == UNDECIDED else ""


def _side(claim: Claim, low: float, high: float) -> str:
    """Return on which side of the bounds an interval lies."""
    if high < claim.least or low > claim.most:
        return FAILS
    return HOLDS if claim.least <= low and high <= claim.most else UNDECIDED


def _more_time_clause(claim: Claim, reading: Reading) -> str:
    """Return a clause with the measuring time that should decide the claim."""
    if reading.rounds is None:
        return ""
    bound = min(
        filter(math.isfinite, (claim.least, claim.most)),
        key=lambda end: abs(math.log(reading.value / end)),
    )
    interval = _interval(reading, reading.rounds)
    if reading.rounds >= verdicts.MIN_PAIRS and interval.half_width <= verdicts.HALF_WIDTH:
        width = 100 * verdicts.HALF_WIDTH
        return f"{bound:g} is within ±{width:g} % of the measured value, where measuring ends"
    more_s = verdicts.seconds_to_tell(interval, math.log(bound), reading.seconds)
    return "" if more_s is None else more_text(more_s, reading.seconds)


def _interval(reading: Reading, rounds: int) -> verdicts.Interval:
    """Return the interval of the ratio's logarithm, and the scatter of its rounds."""
    low, high = (math.log(end) if end > 0 else math.nan for end in reading.ends)
    mean = math.log(reading.value)
    deviation = (high - low) / 2 / float(verdicts.critical(rounds)) * math.sqrt(rounds)
    return verdicts.Interval(rounds, mean, low, high, deviation)
