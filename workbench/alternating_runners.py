"""Two runners, one of the old commit and one of the current, that step in random pairs of blocks.

Each commit has a process of its own, so that neither imports the other's modules and the memory of
each is its own. Only one of the two steps at any time. Their messages become one session: a segment
for each commit, and a paired comparison of the two.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from sessions import numerics as checked
from sessions.model import Configuration, Judgement, Numerics, Phase, Session
from sessions.numbers import counted
from sessions.verdicts import verdict
from sessions.verdicts.comparison import OWN_PEAK
from sessions.verdicts.regression import EARLY_LOSS
from sessions.verdicts.statistics import MIN_BLOCK_STEPS
from workbench import calibration, interrupts, protocol
from workbench.client import runner_command
from workbench.client.headless import Outcome, Watcher
from workbench.client.journal import Journal
from workbench.client.recorder import Recorder
from workbench.client.runner_process import NotStarted, Runner

EARLY_STEPS = 5  # before any timing: results and losses of as many steps are compared
WARM_UP_S = 0.2  # until the runner counts the steps of a block as steady
BLOCK_S = 0.3
LEAST_STEPS = 5  # steady steps of a block that counts
HOPELESS_PAIRS = 8
PATIENCE_S = 1.0  # from Ctrl+C to the end of a runner by force

ONE_BUILD = "each commit ran in only one process; --builds measures several"

Decides = Callable[[Judgement], bool]


@dataclass(frozen=True)
class Variant:
    """One commit: its configuration, and the folder from which its process imports first."""

    title: str
    configuration: Configuration
    folder: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Variables of its runner's process."""
        if self.folder is None:
            return {}
        before = os.environ.get("PYTHONPATH", "")
        return {"PYTHONPATH": os.pathsep.join(filter(None, [str(self.folder), before]))}


class VariantFailed(Exception):  # noqa: N818 - carries the failure
    """The runner of a variant could not run it; ``number`` is 0 for the baseline's."""

    def __init__(self, number: int, failure: protocol.Failure) -> None:
        super().__init__(failure.sentence)
        self.number = number
        self.failure = failure


@dataclass
class _Block:
    """Measurements that a runner reported while it stepped once."""

    times_ms: list[float] = field(default_factory=list)  # times of steady steps
    clocks_mhz: list[float] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)
    ledger: dict[str, Any] = field(default_factory=dict)
    failure: protocol.Failure | None = None
    reason: str = ""


class _Side:
    """One of the two runners; a thread reads its messages."""

    def __init__(self, number: int, variant: Variant) -> None:
        self.number, self.variant = number, variant
        self.catalogue: protocol.Catalogue | None = None
        self.peaks: list[float] = []
        self._messages: queue.SimpleQueue[protocol.AnyMessage | None] = queue.SimpleQueue()
        try:
            self.runner = Runner(command=runner_command.HERE, environment=variant.environment)
        except NotStarted as error:
            raise VariantFailed(number, error.failure) from error
        threading.Thread(target=self._read, name=f"side-{number}", daemon=True).start()

    def introduce(self) -> protocol.Catalogue:
        """Wait for the catalogue; raises ``VariantFailed``."""
        for message in self._until(protocol.Catalogue):
            if isinstance(message, protocol.Catalogue):
                self.catalogue = message
                return message
            if isinstance(message, protocol.Failure):
                raise VariantFailed(self.number, message)
        raise VariantFailed(self.number, _ended())

    def step(self, start: protocol.Start) -> Iterator[protocol.AnyMessage]:
        """Run to the end of ``start`` and yield what the runner reports of it."""
        while True:  # skip older messages, which it sent while the other side stepped
            try:
                self._messages.get_nowait()
            except queue.Empty:
                break
        self.runner.send(start)
        yield from self._until(protocol.Finished)

    def cancel(self) -> None:
        """End what it does; by force if it does not hear."""
        self.runner.cancel(PATIENCE_S)

    def _until(self, last: type[protocol.Message]) -> Iterator[protocol.AnyMessage]:
        while (message := self._messages.get()) is not None:
            yield message
            if isinstance(message, last):
                return

    def _read(self) -> None:
        for message in self.runner.messages():
            self._messages.put(message)
        self._messages.put(None)


class AlternatingRunners:
    """Compares two variants, the baseline first; ``run`` does it once."""

    def __init__(
        self,
        variants: tuple[Variant, Variant],
        command: protocol.Compare,
        decides: Decides,
        watch: Watcher = lambda _message: None,
    ) -> None:
        self._variants, self._command, self._decides = variants, command, decides
        self._watch = watch
        self._random = random.Random(command.seed)
        self._journal = Journal()
        self._recorder = Recorder(Session())
        self._outcome = Outcome(self._recorder.session, self._journal.path)
        self._sides: list[_Side] = []
        self._started_sides: set[int] = set()  # places whose segment was begun
        self._blocks = self._pairs = 0
        self._seconds = self._counted_s = self._origin_s = 0.0
        self._interrupted_by = ""
        self._judgement: Judgement | None = None

    def run(self) -> Outcome:
        """Compare until the verdict is clear, time is spent, or Ctrl+C; raises ``VariantFailed``.

        Nothing is kept of a comparison that could not begin. After Ctrl+C, a comparison may be
        missing in the session.
        """
        try:
            with interrupts.handled_by(self._interrupt, include_ignored=True):
                for build in range(self._command.build_count):
                    self._run_processes(build)
                    if self._is_over():
                        break
                self._judge(final=True)
        except VariantFailed:
            if not self._interrupted_by:  # an interrupted runner has no result either
                raise
        finally:
            session, interrupted = self._recorder.session, self._interrupted_by
            if interrupted:
                text = f"interrupted with {interrupted}"
                self._record(protocol.Note(kind="warning", text=text))
            self._journal.close(
                keep=bool(session.comparisons or (interrupted and session.segments))
            )
        self._outcome.reason = "cancelled" if self._interrupted_by else "done"
        return self._outcome

    def _run_processes(self, build: int) -> None:
        """Start both runners, compare them for their part of the budget, and end them."""
        self._sides = []
        try:
            for number, variant in enumerate(self._variants):
                self._sides.append(_Side(number, variant))
            self._introduce()
            for side in self._sides:
                self._begin(side)
            if build == 0:
                self._announce()
            self._compare(build)
        finally:
            for side in self._sides:
                side.runner.close()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        interrupts.note(number, frame)
        self._interrupted_by = interrupts.SIGNALS[signal.Signals(number)]
        for side in self._sides:  # not here: the interrupted code may hold the lock of sending
            threading.Thread(target=side.cancel, daemon=True).start()

    def _introduce(self) -> None:
        catalogues = [side.introduce() for side in self._sides]
        if not self._origin_s:
            self._origin_s = catalogues[-1].created
            self._record(catalogues[-1])  # the current commit's environment is the session's
            calibration.respected(catalogues[-1], self._command)

    def _begin(self, side: _Side) -> None:
        """Build, check the numbers after the same few steps, and find out how long a step takes."""
        block = self._step(side, steps=EARLY_STEPS, check="last")
        if block.reason != "done":
            raise VariantFailed(side.number, block.failure or _ended())
        if isinstance(loss := block.ledger.get("loss"), int | float):
            facts = protocol.Facts(segment=side.number, ledger={EARLY_LOSS: loss})
            self._record(facts)

    def _announce(self) -> None:
        """Report the two variants and the checks of their numbers."""
        command = self._command
        self._record(
            protocol.ComparisonStarted(
                index=0,
                arms=[variant.title for variant in self._variants],
                segments=[0, 1],
                request={
                    "budget_s": command.budget_s,
                    "region": command.region,
                    "floor": command.floor,
                    "floor_note": command.floor_note,
                    "half_width": command.half_width,
                    "order": command.order,
                    "seed": command.seed,
                    "build_count": command.build_count,
                    **({"one_build": ONE_BUILD} if command.build_count == 1 else {}),
                },
            )
        )
        for number in (0, 1):
            ledger = self._recorder.session.segments[number].ledger
            numerics = Numerics(
                reference="reference" if checked.RIGHT in ledger else "",
                ok=ledger.get(checked.RIGHT),
                text=checked.text(ledger) or "not checked",
            )
            self._record(protocol.NumericsChecked(comparison=0, arm=number, numerics=numerics))
        verdict.load()

    def _compare(self, build: int) -> None:
        seconds = [self._block_seconds(side) for side in self._sides]
        began, given_up = time.monotonic(), 0
        share_s = self._command.budget_s / self._command.build_count
        while not self._interrupted_by:
            turned = bool(self._random.getrandbits(1))
            sides = self._sides[::-1] if turned else self._sides
            blocks = [self._block(side, build, seconds) for side in sides]
            self._pairs += 1
            given_up = given_up + 1 if any(block.void for block in blocks) else 0
            spent_s = time.monotonic() - began
            self._seconds += spent_s - self._counted_s
            self._counted_s = spent_s
            self._judge()
            self._report_progress((build + spent_s / share_s) / self._command.build_count)
            if self._is_over() or spent_s >= share_s or given_up >= HOPELESS_PAIRS:
                break
        self._counted_s = 0.0

    def _is_over(self) -> bool:
        """Return True if the question is answered, or the answer is no longer needed."""
        judgement = self._judgement
        if self._interrupted_by or judgement is None:
            return bool(self._interrupted_by)
        return judgement.pairs >= verdict.MIN_PAIRS and self._decides(judgement)

    def _block_seconds(self, side: _Side) -> float:
        """Return seconds of a block with enough steady steps, within the budget's share."""
        steps = self._step(side, seconds=WARM_UP_S + BLOCK_S).times_ms
        step_s = statistics.median(steps) / 1000 if steps else BLOCK_S
        share_s = self._command.budget_s / (4 * verdict.MIN_PAIRS)
        wanted_s = max(BLOCK_S, MIN_BLOCK_STEPS * step_s)
        least_s = (LEAST_STEPS + 1) * step_s
        return WARM_UP_S + 4 * step_s + max(least_s, min(wanted_s, share_s))

    def _block(self, side: _Side, build: int, seconds: list[float]) -> protocol.Block:
        """Run one block of a side; one that is too short is void, and the next is longer."""
        self._blocks += 1
        stepped = self._step(side, block_number=self._blocks, seconds=seconds[side.number])
        times, void = stepped.times_ms, ""
        if len(times) < LEAST_STEPS:
            void = f"it had {counted(len(times), 'steady step')}, at least {LEAST_STEPS} are needed"
            seconds[side.number] *= 1.5
        block = protocol.Block(
            arm=side.number,
            pair=self._pairs,
            build=build,
            median_ms=statistics.median(times) if times else math.nan,
            mean_ms=statistics.fmean(times) if times else None,
            clock_mhz=statistics.fmean(stepped.clocks_mhz) if stepped.clocks_mhz else None,
            void=void,
        )
        self._record(protocol.BlockDone(comparison=0, block=block))
        if stepped.reason not in ("done", "cancelled") and not self._interrupted_by:
            raise VariantFailed(side.number, stepped.failure or _ended())
        return block

    def _step(self, side: _Side, block_number: int = 0, **start: Any) -> _Block:
        """Let one side step, and take what it reports into the session."""
        block = _Block(reason="cancelled" if self._interrupted_by else "died")
        command = protocol.Start(configuration=side.variant.configuration, **start)
        for message in side.step(command) if not self._interrupted_by else ():
            match message:
                case protocol.Steps():
                    block.times_ms += _steady_times(message, block_number)
                case protocol.Facts():
                    block.ledger |= message.ledger
                case protocol.TelemetrySamples():
                    clocks = message.columns.get("sm_clock", [])
                    if message.device.startswith("gpu"):
                        block.clocks_mhz += [clock for clock in clocks if clock]
                    if side.number == 0:
                        continue  # the other side sends the same device's telemetry
                case protocol.Failure():
                    block.failure = message
                    self._outcome.failures.append(message)
                case protocol.Finished():
                    block.reason = message.reason
                case protocol.State() | protocol.Progress():
                    self._watch(message)
            self._forward(side, message)
        if peak := block.ledger.get(OWN_PEAK):
            side.peaks.append(float(peak))
            typical = statistics.median(side.peaks[-2 * verdict.MIN_PAIRS :])
            self._record(protocol.Facts(segment=side.number, ledger={OWN_PEAK: typical}))
        return block

    def _forward(self, side: _Side, message: protocol.AnyMessage) -> None:
        """Record what belongs to the session, by the session's own numbers and clock."""
        match message:
            case protocol.SegmentStarted():
                if side.number in self._started_sides:
                    return
                self._started_sides.add(side.number)
                message.index = side.number
                message.label = side.variant.title
            case (
                protocol.PhaseChanged()
                | protocol.Steps()
                | protocol.Facts()
                | protocol.EvidenceFound()
                | protocol.Metrics()
            ):
                message.segment = side.number
            case protocol.TelemetrySamples() | protocol.Sampling():
                pass
            case protocol.Note() | protocol.Failure():
                pass
            case _:
                return
        assert side.catalogue is not None
        offset_s = side.catalogue.created - self._origin_s
        message.t_s += offset_s
        if isinstance(message, protocol.Steps | protocol.TelemetrySamples):
            times = message.columns["t_s"]
            message.columns["t_s"] = [None if t is None else t + offset_s for t in times]
        self._record(message)

    def _judge(self, final: bool = False) -> None:
        comparisons, command = self._recorder.session.comparisons, self._command
        if not comparisons:
            return
        self._judgement = verdict.judge(
            comparisons[0],
            region=command.region,
            floor=command.floor,
            half_width=command.half_width,
            seconds=self._seconds,
            least_builds=command.build_count,
        )
        self._record(
            protocol.Judged(
                comparison=0, judgement=self._judgement, seconds=self._seconds, final=final
            )
        )

    def _report_progress(self, fraction: float) -> None:
        judgement = self._judgement
        text = (
            "" if judgement is None else f"{counted(judgement.pairs, 'pair')}, {judgement.verdict}"
        )
        self._watch(protocol.Progress(task="alternating", fraction=min(1.0, fraction), text=text))

    def _record(self, message: protocol.AnyMessage) -> None:
        with contextlib.suppress(protocol.WireError):  # the runner is about to end
            self._recorder.record(message)
        self._journal.write(message)


def _steady_times(message: protocol.Steps, number: int) -> list[float]:
    """Return the times of the steady steps, which are marked with the block's number."""
    columns: Mapping[str, list[float | None]] = message.columns
    steady = [phase == Phase.STEADY for phase in columns["phase"]]
    if number:
        message.columns["block"] = [number if is_steady else 0 for is_steady in steady]
    times = columns.get("gpu_ms", columns["wall_ms"])
    return [ms for ms, is_steady in zip(times, steady, strict=True) if is_steady and ms is not None]


def _ended() -> protocol.Failure:
    return protocol.Failure(kind="died", sentence="The runner ended without a reason.")
