"""A run through experiments: the next command, its time limit, and the result of each experiment.

The owner of the runner, the command line or the window, calls ``next``, passes on every recorded
message, and records the returned messages: the current state of the claims, as a study of the
session. A command that exceeds its time limit is cut off, and its claims report it. Later
experiments continue, with a new runner if necessary. If there is a total limit, no command may use
the time that later commands need (``_share_s``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from sessions.model import Phase, Session
from sessions.studies import claims
from sessions.studies.claims import MEASURING, NOT_HERE, NOT_MEASURED, WAITING, Row
from workbench import protocol
from workbench.claims._claim import Document, Experiment, Outcome, Results, judge, why_not

SLACK_S = 30.0  # beyond what a command may build and measure: starting, checking numbers, ending
CPU_TIMES = 4.0  # as long as on a GPU may building take on a CPU, which runs what it compiles too
BUILD_SHARE = 0.6  # part of a command's time for building, so that something is measured
LEAST_S = 15.0  # in less than that next to nothing is built and measured
_COMPILING = (Phase.COMPILE, Phase.AUTOTUNE)

Chosen = tuple[Document, Experiment]


@dataclass
class _Part:
    """One command of an experiment, and what came of it; None where no claim needs it here."""

    command: protocol.Command | None
    study: int | None = None  # its place in the session, if it made one
    left_out: list[str] = field(default_factory=list)  # clauses
    compiling_s: float = 0.0
    first_compile_s: float = 0.0  # until steps were steady for the first time after it
    compiled: bool = False  # since when later compilations are others


@dataclass
class _CurrentExperiment:
    """The experiment that is being measured."""

    index: int  # in what was chosen
    parts: list[_Part]
    first_segment: int
    sent: _Part | None = None  # the latest

    @property
    def waiting(self) -> list[_Part]:
        """Whose commands are still to be sent."""
        return [part for part in self.parts if part.command is not None]


class Course:
    """Goes through experiments by priority, in one session; each command is bounded in time.

    ``budget_s``: of measuring for one claim, at most. ``limit_s``: for all together, or None.
    ``respect`` tells a command the least difference of a runner's machine, ``clock`` tells seconds.
    ``was_cut``: the latest command took too long. ``ended`` says why it did so early, where it did.
    """

    def __init__(
        self,
        chosen: Sequence[Chosen],
        budget_s: float,
        limit_s: float | None = None,
        respect: Callable[[protocol.Catalogue, protocol.Attribute], object] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._chosen = list(chosen)
        self._budget_s = budget_s
        self._limit_s = limit_s
        self._clock = clock
        self._began = clock()
        self._respect = respect
        self._session = Session()
        self._current: _CurrentExperiment | None = None
        # The order of measuring; claims are shown as they were chosen.
        self._order = sorted(range(len(chosen)), key=lambda index: chosen[index][1].priority)
        self._next = 0  # index in ``_order`` of the experiment to begin
        self._command: protocol.Command | None = None  # in flight
        self._sent_at = 0.0
        self._allowed_s = 0.0
        self._share = ""  # set if the limit shortens the command in flight
        self._counts: list[int] = []  # number of commands by experiment
        self.was_cut = False
        self._compiling: tuple[float, float] | None = (
            None  # since when: the runner's time, and ours
        )
        self._device = ""
        self._outcomes = [
            [Outcome(experiment, claim, WAITING) for claim in experiment.claims]
            for _, experiment in self._chosen
        ]
        self._sent_rows: list[Row] = []
        self.begun = False
        self.over = False
        self.ended = ""

    # For the owner of the runner

    def begin(
        self, catalogue: protocol.Catalogue, session: Session
    ) -> Iterator[protocol.AnyMessage]:
        """Keep the session and the device; yield the first messages to record."""
        self._session, self._device, self.begun = session, catalogue.device, True
        for outcomes in self._outcomes:
            for index, outcome in enumerate(outcomes):
                if why_not(outcome.experiment, outcome.claim, self._device):
                    outcomes[index] = judge(outcome.experiment, outcome.claim, self._device, None)
        documents = list(dict.fromkeys(document.name for document, _ in self._chosen))
        yield protocol.StudyStarted(
            index=protocol.OWN_STUDY,
            kind=claims.KIND,
            title=f"claims: {', '.join(documents)}",
            request={
                "documents": [*documents],
                "experiments": [experiment.name for _, experiment in self._chosen],
                "budget_s": self._budget_s,
                "limit_s": self._limit_s or 0.0,
            },
        )
        yield from self.pending_messages()

    def next(self, catalogue: protocol.Catalogue) -> protocol.Command | None:
        """Return the next command for an idle runner; None if all is done."""
        self._end_command()
        while not self._out_of_time() and not self.over:
            if self._current is not None and self._current.waiting:
                return self._send(catalogue, self._current, self._current.waiting[0])
            else:
                self._conclude()
                self.over = not self._begin_next(catalogue)
        return None

    def on_runner_lost(self) -> bool:
        """Return True if a new runner is needed after this one was lost with its command."""
        self._end_command()
        has_waiting = self._current is not None and bool(self._current.waiting)
        return not self._out_of_time() and (has_waiting or self._next < len(self._chosen))

    def on_message(self, message: protocol.AnyMessage) -> Iterator[protocol.AnyMessage]:
        """Handle a message that was recorded; yield those to record after it."""
        current = self._current
        if current is None or current.sent is None or self._command is None:
            return
        match message:
            case protocol.PhaseChanged():
                self._add_compile_time(message)
            case protocol.StudyStarted() if message.index != protocol.OWN_STUDY:
                current.sent.study = len(self._session.studies) - 1
            case protocol.Failure() if not self.was_cut and message.kind != protocol.JOURNAL:
                current.sent.left_out.append(message.sentence)
            case protocol.StudyRows() if message.table == "effects":
                yield from self._interim_messages()
            case protocol.Finished():
                yield from self._interim_messages()

    @property
    def allowed_s(self) -> float:
        """Seconds that the command in flight may take from when it was sent."""
        return self._allowed_s

    def on_timeout(self, command: protocol.Command | None) -> bool:
        """Return True, to cancel it, if a command that exceeds its time is still in flight.

        May be called from another thread.
        """
        self.was_cut = command is not None and command is self._command
        return self.was_cut

    def finish(self, why: str = "") -> Iterator[protocol.AnyMessage]:
        """End, early where ``why`` says so: what was not measured by now is not measured."""
        if self._current is not None and self._current.sent is not None and why:
            self._current.sent.left_out.append(why)
        self._command, self.over, self.ended = None, True, why
        self._conclude(why)
        self._give_up(why or "there was no runner to measure it")
        if not self.begun:
            return
        yield from self.pending_messages()
        seconds = self._clock() - self._began
        yield protocol.StudyFacts(
            study=protocol.OWN_STUDY,
            facts={"final": True, "seconds": seconds, "ended": why or "done"},
        )

    def pending_messages(self) -> Iterator[protocol.AnyMessage]:
        """Yield the claims as they are known, if they have changed since the last call."""
        rows = self.rows
        if self.begun and rows and rows != self._sent_rows:
            self._sent_rows = rows
            yield protocol.StudyRows(
                study=protocol.OWN_STUDY,
                table=claims.TABLE,
                columns=claims.columns(rows),
                replace=True,
            )

    @property
    def rows(self) -> list[Row]:
        """All claims as they are known."""
        return [
            _row(document, outcome)
            for (document, _), outcomes in zip(self._chosen, self._outcomes, strict=True)
            for outcome in outcomes
        ]

    @property
    def doing(self) -> str:
        """Return a short text about the measurement in progress."""
        if self._current is None:
            return ""
        document, experiment = self._chosen[self._current.index]
        return f"{document.name}: {experiment.name}"

    # One experiment after the other

    def _begin_next(self, catalogue: protocol.Catalogue) -> bool:
        """Begin the next experiment that can be measured here; False where there is none."""
        while self._next < len(self._order):
            index, self._next = self._order[self._next], self._next + 1
            _, experiment = self._chosen[index]
            if all(why_not(experiment, claim, self._device) for claim in experiment.claims):
                continue
            parts = self._parts(experiment, catalogue)
            self._current = _CurrentExperiment(index, parts, len(self._session.segments))
            self._outcomes[index] = [
                Outcome(outcome.experiment, outcome.claim, MEASURING)
                if outcome.verdict == WAITING
                else outcome
                for outcome in self._outcomes[index]
            ]
            return True
        return False

    def _parts(self, experiment: Experiment, catalogue: protocol.Catalogue) -> list[_Part]:
        """Return its commands; those without a claim on this device are not sent."""
        claims_here = [c for c in experiment.claims if not why_not(experiment, c, self._device)]
        everything = any(claim.commands is None for claim in claims_here)
        places = {index for claim in claims_here for index in claim.commands or ()}
        return [
            _Part(command if everything or index in places else None)
            for index, command in enumerate(experiment.commands(catalogue, self._budget_s))
        ]

    def _send(
        self, catalogue: protocol.Catalogue, current: _CurrentExperiment, part: _Part
    ) -> protocol.Command | None:
        command = part.command
        building_s, measuring_s = self._chosen[current.index][1].build_s, 0.0
        building_s *= 1.0 if self._device == "cuda" else CPU_TIMES
        share_s = self._share_s(catalogue, current)
        if isinstance(command, protocol.Attribute):
            self._respect(catalogue, command)
            command.build_s = min(building_s, max(1.0, BUILD_SHARE * share_s))
            measuring_s = command.budget_s
        elif isinstance(command, protocol.Start):
            measuring_s = command.seconds or 0.0
        elif isinstance(command, protocol.Bench):
            measuring_s = command.budget_s or 0.0
        current.sent, part.command = part, None
        self._command, self.was_cut = command, False
        self._sent_at = self._clock()
        wanted_s = building_s + measuring_s + SLACK_S
        self._allowed_s = min(wanted_s, share_s)
        self._share = ""
        if share_s < wanted_s:
            self._share = f"its share of the limit of {self._limit_s:g} s"
        return command

    def _share_s(self, catalogue: protocol.Catalogue, current: _CurrentExperiment) -> float:
        """Return seconds that the next command may take of what is left of the limit.

        The commands of an experiment have equal shares, and what one does not need is shared anew.
        Before that, ``LEAST_S`` is kept for each command of the experiments after it that have its
        priority, as far as these here have as much.
        """
        left_s = self._left_s()
        if not self._counts:
            self._counts = [
                sum(part.command is not None for part in self._parts(experiment, catalogue))
                for _, experiment in self._chosen
            ]
        priority = self._chosen[current.index][1].priority
        later = sum(
            self._counts[index]
            for index in self._order[self._next :]
            if self._chosen[index][1].priority <= priority
        )
        command_count = len(current.waiting)
        if math.isinf(left_s):
            return left_s
        kept_s = min(later * LEAST_S, max(0.0, left_s - command_count * LEAST_S))
        return (left_s - kept_s) / command_count

    def _end_command(self) -> None:
        """Record that the command in flight was cut off, if it was."""
        current = self._current
        if self._command is None or current is None or current.sent is None:
            return
        self._command = None
        sent = current.sent
        if self._compiling is not None:  # it never came to its end
            sent.compiling_s += self._clock() - self._compiling[1]
            self._compiling = None
        took_s = self._clock() - self._sent_at
        if self.was_cut:
            share = f", {self._share}" if self._share else ""
            sent.left_out.append(f"cut off after {took_s:.0f} s of {self._allowed_s:.0f} s{share}")
        elif self._share and took_s >= BUILD_SHARE * self._allowed_s:  # building may have been cut
            sent.left_out.append(f"{self._share} was {self._allowed_s:.0f} s")

    def _left_s(self) -> float:
        """Return seconds that are left of the limit."""
        return (self._limit_s or math.inf) - (self._clock() - self._began)

    def _out_of_time(self) -> bool:
        """Return True if the limit for all is reached; then it is over."""
        if self._left_s() > 0:
            return False
        why = f"the total limit of {self._limit_s:g} s was reached first"
        self._conclude(why)
        self._give_up(why)
        self.over = True
        return True

    def _add_compile_time(self, message: protocol.PhaseChanged) -> None:
        """Add up the seconds that the runner compiles."""
        current = self._current
        assert current is not None and current.sent is not None
        part = current.sent
        if self._compiling is not None:
            spent_s = message.t_s - self._compiling[0]
            part.compiling_s += spent_s
            part.first_compile_s += 0.0 if part.compiled else spent_s
        part.compiled = part.compiled or (
            message.phase == Phase.STEADY and part.first_compile_s > 0
        )
        compiles = message.phase in _COMPILING
        self._compiling = (message.t_s, self._clock()) if compiles else None

    def _conclude(self, unsent: str = "") -> None:
        """Judge the experiment that has ended, for good; ``unsent``: why commands are left."""
        if (current := self._current) is None:
            return
        experiment, results = self._chosen[current.index][1], self._found(current, unsent)
        self._outcomes[current.index] = [
            judge(experiment, claim, self._device, results) for claim in experiment.claims
        ]
        self._current = None

    def _interim_messages(self) -> Iterator[protocol.AnyMessage]:
        """Yield what the experiment shows so far; none of it is final."""
        current = self._current
        assert current is not None
        experiment = self._chosen[current.index][1]
        results = self._found(current)
        for number, claim in enumerate(experiment.claims):
            interim = judge(experiment, claim, self._device, results)
            if interim.verdict != NOT_HERE:
                self._outcomes[current.index][number] = Outcome(
                    experiment, claim, MEASURING, interim.reading
                )
        yield from self.pending_messages()

    def _found(self, current: _CurrentExperiment, unsent: str = "") -> Results:
        session_studies = self._session.studies
        studies = [
            None if part.study is None else session_studies[part.study] for part in current.parts
        ]
        left_out = [
            [*part.left_out, *_compiling_clause(part), *([unsent] * bool(unsent and part.command))]
            for part in current.parts
        ]
        segments = self._session.segments[current.first_segment :]
        compile_s = [part.first_compile_s for part in current.parts]
        return Results(self._session, segments, studies, left_out, compile_s)

    def _give_up(self, why: str) -> None:
        """Mark the claims that were not begun as not measured."""
        for outcomes in self._outcomes:
            for index, outcome in enumerate(outcomes):
                if outcome.verdict in (WAITING, MEASURING):
                    outcomes[index] = Outcome(
                        outcome.experiment, outcome.claim, NOT_MEASURED, reason=why
                    )


def _compiling_clause(part: _Part) -> list[str]:
    return [f"compiling took {part.compiling_s:.0f} s"] if part.compiling_s >= 1 else []


def _row(document: Document, outcome: Outcome) -> Row:
    claim, reading = outcome.claim, outcome.reading
    known = {}
    if reading is not None:
        known = {"measured": reading.value}
        if reading.low is not None and reading.high is not None:
            known |= {"low": reading.low, "high": reading.high}
        if reading.rounds is not None:
            known["rounds"] = float(reading.rounds)
    return Row(
        document=document.name,
        experiment=outcome.experiment.name,
        row=claim.row,
        claim=claim.name,
        says=claim.says,
        unit=claim.unit,
        least=claim.least,
        most=claim.most,
        result=outcome.verdict,
        reason=outcome.reason,
        how=outcome.experiment.how,
        **known,
    )
