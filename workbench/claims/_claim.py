"""What a claim is: what a document says, the experiment that measures it, and the judgement.

Bounds are the document's number with its own rounding: "1.5x" is kept by 1.45 and by all that is
better. A claim holds only where it was measured and its 95 % interval lies within the bounds; it
does not hold where the interval lies outside, or where the faster side computes wrong numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sessions.claims import FAILS, HOLDS, NOT_HERE, NOT_MEASURED, UNDECIDED
from sessions.model import Segment, Session, Study
from workbench import protocol

BUILD_S = 60.0
GPU_CLAIM = "it is about a GPU, and this runner uses the CPU"

Commands = Callable[[protocol.Catalogue, float], list[protocol.Command]]


class Unmeasured(Exception):  # noqa: N818 - carries its reason
    """The experiment did not give this number: one clause that says why."""


@dataclass(frozen=True)
class Reading:
    """A measured number with the ends of its 95 % interval; both None where it is exact."""

    value: float
    low: float | None = None
    high: float | None = None
    wrong: str = ""  # whose numbers were out of tolerance, so that the speed counts for nothing
    note: str = ""

    @property
    def ends(self) -> tuple[float, float]:
        """The interval, or the number itself twice where it is exact."""
        if self.low is None or self.high is None:
            return self.value, self.value
        return self.low, self.high


@dataclass(frozen=True)
class Found:
    """What one experiment left in the session: ``studies`` one for each command, if it made one."""

    session: Session
    segments: Sequence[Segment]
    studies: Sequence[Study | None]
    failures: Sequence[str]  # sentences


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One number of a document. ``read`` raises ``Unmeasured``.

    ``least`` and ``most`` are the bounds; at least one is given. ``needs_gpu`` says why it cannot
    be measured on the CPU, where that is so.
    """

    row: str  # as in the project's list of requirements
    name: str
    says: str  # in the document's own numbers
    unit: str
    read: Callable[[Found], Reading]
    least: float = -math.inf
    most: float = math.inf
    needs_gpu: str = ""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One or more commands to the runner, and the claims that read what they give.

    ``commands(catalogue, budget_s)``: the device is the catalogue's, the budget that of alternating
    of one command. ``how`` says in words what is measured. ``build_s``: seconds that building for
    one command may take, compiling and tuning included. ``needs_gpu`` as of a claim.
    """

    name: str
    how: str
    commands: Commands
    claims: tuple[Claim, ...]
    build_s: float = BUILD_S
    needs_gpu: str = ""


@dataclass(frozen=True, kw_only=True)
class Document:
    """All that one document claims and that is measured here."""

    name: str
    title: str
    experiments: tuple[Experiment, ...]


@dataclass(frozen=True)
class Outcome:
    """A claim beside what was measured of it."""

    experiment: Experiment
    claim: Claim
    verdict: str
    reading: Reading | None = None
    reason: str = ""


def why_not(experiment: Experiment, claim: Claim, device: str) -> str:
    """Why a claim cannot be measured on a device; empty where it can."""
    return (experiment.needs_gpu or claim.needs_gpu) if device != "cuda" else ""


def judge(experiment: Experiment, claim: Claim, device: str, found: Found | None) -> Outcome:
    """What an experiment shows of a claim; ``found`` is None where it was not run."""
    if reason := why_not(experiment, claim, device):
        return Outcome(experiment, claim, NOT_HERE, reason=reason)
    if found is None:
        return Outcome(experiment, claim, NOT_MEASURED, reason="the experiment was not run")
    try:
        reading = claim.read(found)
    except Unmeasured as error:
        reason = "; ".join([str(error), *dict.fromkeys(found.failures)])
        return Outcome(experiment, claim, NOT_MEASURED, reason=reason)
    if not math.isfinite(reading.value):
        return Outcome(experiment, claim, NOT_MEASURED, reason="no number came of it")
    if reading.wrong:
        reason = f"{reading.wrong} computed wrong numbers"
        return Outcome(experiment, claim, FAILS, reading, reason)
    return Outcome(experiment, claim, _by_bounds(claim, reading), reading, reading.note)


def _by_bounds(claim: Claim, reading: Reading) -> str:
    low, high = reading.ends
    if high < claim.least or low > claim.most:
        return FAILS
    return HOLDS if claim.least <= low and high <= claim.most else UNDECIDED
