"""A run through experiments: which command is next, how long it may take, and what came of each.

Whoever owns the runner, the command line or the window, asks for ``next``, hands on every message
once it is recorded, and records what comes back: the claims as a study of the session, at every
moment as they are known by then. A command that takes longer than it may is cut off, and what it
left unmeasured says so; the experiments after it go on, with another runner where it took that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from sessions import claims
from sessions.claims import MEASURING, NOT_HERE, NOT_MEASURED, WAITING, Row
from sessions.model import Phase, Session
from workbench import protocol
from workbench.claims._claim import Document, Experiment, Found, Outcome, judge, why_not

SLACK_S = 30.0  # beyond what a command may build and measure: starting, checking numbers, ending
CPU_TIMES = 4.0  # as long as on a GPU may building take on a CPU, which runs what it compiles too
LEFT_SHARE = 0.6  # of what is left of the limit, for building; so that something is measured
_COMPILING = (Phase.COMPILE, Phase.AUTOTUNE)

Chosen = tuple[Document, Experiment]


@dataclass
class _Now:
    """The experiment that is being measured."""

    place: int  # in what was chosen
    commands: list[protocol.Command]  # that are still to be sent
    first_segment: int
    studies: list[int | None] = field(
        default_factory=list
    )  # places of the commands' in the session
    failures: list[str] = field(default_factory=list)
    compiling_s: float = 0.0


class Course:
    """Goes through experiments in order, in one session; each command is bounded in time.

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
        self._now: _Now | None = None
        self._next = 0  # place of the experiment to begin
        self._command: protocol.Command | None = None  # in flight
        self._sent_at = 0.0
        self._allowed_s = 0.0
        self.was_cut = False
        self._compiling: tuple[float, float] | None = (
            None  # since when: the runner's time, and ours
        )
        self._device = ""
        self._outcomes = [
            [Outcome(experiment, claim, WAITING) for claim in experiment.claims]
            for _, experiment in self._chosen
        ]
        self._told: list[Row] = []
        self.begun = False
        self.over = False
        self.ended = ""

    # For whoever owns the runner

    def begin(
        self, catalogue: protocol.Catalogue, session: Session
    ) -> Iterator[protocol.AnyMessage]:
        """Take the session that is recorded, and the device; what to record first."""
        self._session, self._device, self.begun = session, catalogue.device, True
        for outcomes in self._outcomes:
            for place, one in enumerate(outcomes):
                if why_not(one.experiment, one.claim, self._device):
                    outcomes[place] = judge(one.experiment, one.claim, self._device, None)
        documents = list(dict.fromkeys(document.name for document, _ in self._chosen))
        yield protocol.StudyStarted(
            index=protocol.OWN_STUDY,
            kind=claims.KIND,
            title=f"claims: {', '.join(documents)}",
            asked={
                "documents": [*documents],
                "experiments": [experiment.name for _, experiment in self._chosen],
                "budget_s": self._budget_s,
                "limit_s": self._limit_s or 0.0,
            },
        )
        yield from self.tell()

    def next(self, catalogue: protocol.Catalogue) -> protocol.Command | None:
        """The next command for an idle runner; None where all is done."""
        self._end_command()
        while not self._out_of_time() and not self.over:
            if self._now is not None and self._now.commands:
                return self._send(catalogue, self._now.commands.pop(0))
            else:
                self._conclude()
                self.over = not self._take_up(catalogue)
        return None

    def lost(self) -> bool:
        """The runner is gone, and with it the command in flight: whether another one is needed."""
        self._end_command()
        more = self._now is not None and bool(self._now.commands)
        return not self._out_of_time() and (more or self._next < len(self._chosen))

    def heed(self, message: protocol.AnyMessage) -> Iterator[protocol.AnyMessage]:
        """Take a message that was recorded; what to record after it."""
        now = self._now
        if now is None or self._command is None:
            return
        match message:
            case protocol.PhaseChanged():
                self._follow(message)
            case protocol.StudyStarted() if message.index != protocol.OWN_STUDY:
                now.studies[-1] = len(self._session.studies) - 1
            case protocol.Failure() if not self.was_cut and message.kind != protocol.JOURNAL:
                now.failures.append(message.sentence)
            case protocol.StudyRows() if message.table == "effects":
                yield from self._look()
            case protocol.Finished():
                yield from self._look()

    @property
    def allowed_s(self) -> float:
        """Seconds that the command in flight may take from when it was sent."""
        return self._allowed_s

    def cut(self, command: protocol.Command | None) -> bool:
        """A command took too long: True where it is still in flight, and to be cancelled.

        May be called from another thread.
        """
        self.was_cut = command is not None and command is self._command
        return self.was_cut

    def finish(self, why: str = "") -> Iterator[protocol.AnyMessage]:
        """End, early where ``why`` says so: what was not measured by now is not measured."""
        if self._now is not None and why:
            self._now.failures.append(why)
        self._command, self.over, self.ended = None, True, why
        self._conclude()
        self._give_up(why or "no runner was there to measure it")
        if not self.begun:
            return
        yield from self.tell()
        seconds = self._clock() - self._began
        yield protocol.StudyFacts(
            study=protocol.OWN_STUDY,
            facts={"final": True, "seconds": seconds, "ended": why or "done"},
        )

    def tell(self) -> Iterator[protocol.AnyMessage]:
        """The claims as they are known, where that has changed; to be recorded once begun."""
        rows = self.rows
        if self.begun and rows and rows != self._told:
            self._told = rows
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
        """What is measured now, in a few words."""
        if self._now is None:
            return ""
        document, experiment = self._chosen[self._now.place]
        return f"{document.name}: {experiment.name}"

    # One experiment after the other

    def _take_up(self, catalogue: protocol.Catalogue) -> bool:
        """Begin the next experiment that can be measured here; False where there is none."""
        while self._next < len(self._chosen):
            place, self._next = self._next, self._next + 1
            _, experiment = self._chosen[place]
            if all(why_not(experiment, claim, self._device) for claim in experiment.claims):
                continue
            commands = experiment.commands(catalogue, self._budget_s)
            self._now = _Now(place, list(commands), len(self._session.segments))
            self._outcomes[place] = [
                Outcome(one.experiment, one.claim, MEASURING) if one.verdict == WAITING else one
                for one in self._outcomes[place]
            ]
            return True
        return False

    def _send(self, catalogue: protocol.Catalogue, command: protocol.Command) -> protocol.Command:
        now = self._now
        assert now is not None
        building_s, measuring_s = self._chosen[now.place][1].build_s, 0.0
        building_s *= 1.0 if self._device == "cuda" else CPU_TIMES
        left_s = self._left_s()
        if isinstance(command, protocol.Attribute):
            self._respect(catalogue, command)
            command.build_s = min(building_s, max(1.0, LEFT_SHARE * left_s))
            measuring_s = command.budget_s
        elif isinstance(command, protocol.Start):
            measuring_s = command.seconds or 0.0
        elif isinstance(command, protocol.Bench):
            measuring_s = command.budget_s or 0.0
        now.studies.append(None)
        self._command, self.was_cut = command, False
        self._sent_at = self._clock()
        self._allowed_s = min(building_s + measuring_s + SLACK_S, left_s)
        return command

    def _end_command(self) -> None:
        """What is to be told of the command that was in flight, if it was cut off."""
        now = self._now
        if self._command is None or now is None:
            return
        self._command = None
        if self._compiling is not None:  # it never came to its end
            now.compiling_s += self._clock() - self._compiling[1]
            self._compiling = None
        if self.was_cut:
            took_s = self._clock() - self._sent_at
            short = " that the limit for all had left" if self._left_s() <= 0 else ""
            now.failures.append(f"cut off after {took_s:.0f} s, of {self._allowed_s:.0f} s{short}")

    def _left_s(self) -> float:
        """Seconds that are left of the limit."""
        return (self._limit_s or float("inf")) - (self._clock() - self._began)

    def _out_of_time(self) -> bool:
        """Whether the limit for all is reached; then it is over."""
        if self._left_s() > 0:
            return False
        self._conclude()
        self._give_up(f"the limit of {self._limit_s:g} s for all was reached before it")
        self.over = True
        return True

    def _follow(self, message: protocol.PhaseChanged) -> None:
        """Add up how long the runner compiles."""
        now = self._now
        assert now is not None
        if self._compiling is not None:
            now.compiling_s += message.t_s - self._compiling[0]
        compiles = message.phase in _COMPILING
        self._compiling = (message.t_s, self._clock()) if compiles else None

    def _conclude(self) -> None:
        """Judge the experiment that has ended, for good."""
        if (now := self._now) is None:
            return
        experiment, found = self._chosen[now.place][1], self._found(now)
        self._outcomes[now.place] = [
            judge(experiment, claim, self._device, found) for claim in experiment.claims
        ]
        self._now = None

    def _look(self) -> Iterator[protocol.AnyMessage]:
        """What the experiment shows by now; none of it is a result yet."""
        now = self._now
        assert now is not None
        experiment = self._chosen[now.place][1]
        found = self._found(now)
        for place, claim in enumerate(experiment.claims):
            seen = judge(experiment, claim, self._device, found)
            if seen.verdict != NOT_HERE:
                self._outcomes[now.place][place] = Outcome(
                    experiment, claim, MEASURING, seen.reading
                )
        yield from self.tell()

    def _found(self, now: _Now) -> Found:
        failures = list(now.failures)
        if now.compiling_s >= 1:
            failures.append(f"compiling took {now.compiling_s:.0f} s")
        made = self._session.studies
        studies = [None if place is None else made[place] for place in now.studies]
        return Found(self._session, self._session.segments[now.first_segment :], studies, failures)

    def _give_up(self, why: str) -> None:
        """What was not begun is not measured."""
        for outcomes in self._outcomes:
            for place, one in enumerate(outcomes):
                if one.verdict in (WAITING, MEASURING):
                    outcomes[place] = Outcome(one.experiment, one.claim, NOT_MEASURED, reason=why)


def _row(document: Document, one: Outcome) -> Row:
    claim, reading = one.claim, one.reading
    known = {}
    if reading is not None:
        known = {"measured": reading.value}
        if reading.low is not None and reading.high is not None:
            known |= {"low": reading.low, "high": reading.high}
        if reading.rounds is not None:
            known["rounds"] = float(reading.rounds)
    return Row(
        document=document.name,
        experiment=one.experiment.name,
        row=claim.row,
        claim=claim.name,
        says=claim.says,
        unit=claim.unit,
        least=claim.least,
        most=claim.most,
        result=one.verdict,
        reason=one.reason,
        how=one.experiment.how,
        **known,
    )
